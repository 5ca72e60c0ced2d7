"""Print each declared dependency of each package with its bounds, and which nox sessions test its bounds."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import tomllib

ROOT = Path(__file__).resolve().parents[1]
LOWEST_OF_ALL = (
    "mb-schema",
    "mb-config",
    "mb-plan",
    "mb-overlap",
    "mb-metrics",
    "mb-resilience",
    "mb-loop",
    "mb-launch",
    "mb-verify",
    "mb-guard",
)
"""Packages whose required dependencies `oldest` installs at their lowest, without extras."""
LOWEST_WITH_EXTRAS = ("mb-data", "mb-launch", "mb-trainer")
"""Packages whose extras `oldest` installs at their lowest, too, but torch and Megatron Core."""
LOWEST_TORCH = {"mb-host": ("mcore",), "mb-checkpoint": ("mcore",)}
"""Packages and extras that `oldest_torch` installs at their lowest, torch and Megatron Core included."""
WORKSPACE = ("torch", "megatron-core", "nvidia-resiliency-ext")
"""Distributions that the workspace holds at one version in `oldest`."""
UNTESTED = {"transformer-engine": "needs a compiler and CUDA"}
"""Distributions that no session installs, and the reason."""


class Declared(NamedTuple):
    """A dependency of a package."""

    package: str
    extra: str
    """Empty: required."""
    name: str
    bounds: str
    lowest: str
    """Session that tests the lowest release, or the reason why none does."""
    newest: str
    """Session that tests the newest release, or the reason why none does."""


def declared() -> Iterator[Declared]:
    """Return the dependencies of all packages but those on each other."""
    for file in sorted([*ROOT.glob("packages/*/pyproject.toml"), ROOT / "meta/pyproject.toml"]):
        project = tomllib.loads(file.read_text())["project"]
        groups = {"": project["dependencies"], **project.get("optional-dependencies", {})}
        for extra, specs in groups.items():
            for spec in specs:
                name, bounds = parsed(spec)
                if not name.startswith("mb-"):
                    lowest = lowest_session(project["name"], extra, name, bounds)
                    yield Declared(project["name"], extra, name, bounds, lowest, UNTESTED.get(name, "newest"))


def parsed(spec: str) -> tuple[str, str]:
    """Return the name and the bounds of a requirement."""
    found = re.match(r"([A-Za-z0-9_.-]+)(?:\[[^]]*\])?\s*([^;]*)", spec)
    assert found, spec
    return found[1].lower(), found[2].strip()


def lowest_session(package: str, extra: str, name: str, bounds: str) -> str:
    """Return the session that tests the lowest release that the bounds allow, or the reason why none does."""
    if name in UNTESTED:
        return UNTESTED[name]
    if not re.search(r">=|==|~=", bounds):
        return "no lower bound"
    if extra in ("", *LOWEST_TORCH.get(package, ())) and package in LOWEST_TORCH:
        return "oldest_torch"
    if name == "nvidia-resiliency-ext":
        return "unit"  # the workspace has the lowest release
    if name in WORKSPACE:
        return "none (others: oldest_torch)"
    if package in LOWEST_WITH_EXTRAS or (package in LOWEST_OF_ALL and not extra):
        return "oldest"
    return "none"


def main() -> None:
    """Print the table; exit with 1 where a dependency has no lower bound."""
    rows = [*declared()]
    for row in [Declared(*Declared._fields), *rows]:
        print(f"{row.package:14} {row.extra:14} {row.name:24} {row.bounds:24} {row.lowest:32} {row.newest}")
    sys.exit(any(row.lowest == "no lower bound" for row in rows))


if __name__ == "__main__":
    main()
