"""Check the bounds of the records against releases: `python check_versions.py 0.19.0=FOLDER 0.19.2=FOLDER`.

Each folder holds an installed megatron-core of that version (`uv pip install --target FOLDER --no-deps`). Within the
bounds of a record every function of its patches must be known.
`nox -s guard_versions` installs the releases.
"""

import sys
from pathlib import Path

from mb_guard.catalogue import FAULTS
from mb_guard.sources import source_hash
from mb_guard.versions import within


def unknown_functions(version: str, folder: Path) -> list[str]:
    """Return the functions within the bounds of a record whose source is not one of those of its patch."""
    found = []
    for fault in FAULTS:
        bounds = fault.versions.get("megatron-core")
        if bounds is None or not within(version, bounds):
            continue
        for patch in fault.patches:
            if patch.sources and patch.module.startswith("megatron."):
                file = folder.joinpath(*patch.module.split(".")).with_suffix(".py")
                source = source_hash(file.read_text(), patch.target) if file.exists() else None
                if source not in patch.sources:
                    found.append(f"{version}: {fault.id}: {patch.module}.{patch.target} is {source}")
    return found


def main() -> None:
    """Print the unknown functions, and exit with 1 if there are any."""
    pairs = [argument.partition("=") for argument in sys.argv[1:]]
    found = [line for version, _, folder in pairs for line in unknown_functions(version, Path(folder))]
    sys.stdout.write(
        "\n".join([*found, f"{len(pairs)} versions, {len(FAULTS)} faults, {len(found)} unknown"]) + "\n"
    )
    raise SystemExit(bool(found))


if __name__ == "__main__":
    main()
