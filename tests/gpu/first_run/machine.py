"""Environment of the rows: packages that are brought along, and the path to the repository's own."""

import os
import shlex
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import tomllib

REPOSITORY = Path(__file__).resolve().parents[3]
GPU_TESTS = REPOSITORY / "tests" / "gpu"
SMALL = (
    "dataset.vocab_size=300",
    "dataset.seq_length=32",
    "model.seq_length=32",
    "model.num_layers=1",
    "model.hidden_size=32",
    "model.ffn_hidden_size=64",
    "model.num_attention_heads=4",
    "model.num_query_groups=2",
    "scheduler.lr_warmup_iters=2",
)
"""The recipe gpt_tiny so small that a step takes milliseconds on a CPU."""
TEXT_RECIPES = ("gpt_tiny", "moe_tiny", "t5_tiny", "hybrid_tiny")
"""Recipes that train on text of this machine."""
SETTINGS = "settings.json"
"""File of the output folder with what `mb check` prints for the settings of each row."""
NO_GPU = "there is no CUDA device"


class MachineError(Exception):
    """The packages that are brought along cannot be used; the text is the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Output folder and environment of the rows, and whether there is a GPU."""

    out: Path
    environment: Mapping[str, str]
    gpu: bool

    def trained(self, row: str) -> Path:
        """Return the run folder of a row that trains."""
        return self.out / "runs" / row

    def measured(self, row: str) -> Path:
        """Return the folder of a row that measures speed."""
        return self.out / "bench" / row

    def words(self, words: Sequence[str], *, recipe: str = "gpt_tiny") -> list[str]:
        """Return the arguments of a run: text is indexed in one folder for all runs, and is small without a GPU."""
        if recipe not in TEXT_RECIPES:
            return [recipe, *words]
        corpus = [f"dataset.cache_dir={self.out / 'data'}"]
        corpus += [] if self.gpu else [f"dataset.sources=[{GPU_TESTS.parent}]"]
        return [recipe, *corpus, *(SMALL if recipe == "gpt_tiny" and not self.gpu else ()), *words]


def prepare(out: Path, packages: Sequence[Path] = (), *, dry_run: bool) -> Machine:
    """Install the packages that are brought along, and return what the rows run with.

    Args:
        out: Output folder.
        packages: Folders of wheels, of site-packages, or with an install.sh.
        dry_run: Hide the GPU.

    Raises:
        MachineError: install.sh failed, or there is no such folder.
    """
    (out / SETTINGS).unlink(missing_ok=True)  # of rows that may have changed
    environment = dict(os.environ)
    environment.pop(
        "PYTHONDONTWRITEBYTECODE", None
    )  # each row would compile all modules again, for 20 seconds
    added: list[str] = []
    for folder in packages:
        if not folder.is_dir():
            raise MachineError(
                f"--packages: {folder} is not a folder. Name one with packages, with wheels, or with an install.sh."
            )
        if (folder / "install.sh").exists():
            environment = installed(folder / "install.sh", root=out / "packages", environment=environment)
        elif wheels := sorted(folder.glob("*.whl")):
            added.append(str(unpacked(wheels, out / "wheels")))
        else:
            added.append(str(folder))
    sources = [*sorted(map(str, REPOSITORY.glob("packages/*/src"))), str(REPOSITORY / "meta" / "src")]
    given = [part for part in environment.get("PYTHONPATH", "").split(os.pathsep) if part]
    path = [*sources, *added, *given, str(describe_packages(out / "metadata"))]
    environment |= {"PYTHONPATH": os.pathsep.join(path), "PYTHONUNBUFFERED": "1", "FIRST_RUN_OUT": str(out)}
    if dry_run:
        environment["CUDA_VISIBLE_DEVICES"] = ""
    sys.path[:0] = path  # for find_spec
    return Machine(out=out, environment=environment, gpu=not dry_run)


def unpacked(wheels: Sequence[Path], folder: Path) -> Path:
    """Unpack wheels into a folder, which is returned."""
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
    return folder


def installed(script: Path, *, root: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Run install.sh and return the environment that its te_env.sh sets."""
    root.mkdir(parents=True, exist_ok=True)
    shell = f"bash {shlex.quote(str(script))} >&2; . {shlex.quote(str(root))}/te_env.sh && env -0"
    done = subprocess.run(
        ["bash", "-c", shell], env={**environment, "ROOT": str(root)}, stdout=subprocess.PIPE, check=False
    )
    if done.returncode != 0:
        raise MachineError(
            f"{script}: no environment in {root}/te_env.sh (exit code {done.returncode}); see stderr"
        )
    return dict(each.split("=", 1) for each in done.stdout.decode().split("\0") if "=" in each)


def describe_packages(folder: Path) -> Path:
    """Write the metadata of the repository's packages, whose versions a checkpoint records; return the folder."""
    for file in (*REPOSITORY.glob("packages/*/pyproject.toml"), REPOSITORY / "meta" / "pyproject.toml"):
        project = tomllib.loads(file.read_text())["project"]
        name, version = project["name"], project["version"]
        info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True, exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return folder


def without_packages(folder: Path, names: Sequence[str]) -> str:
    """Return a folder for the head of the path, in whose presence packages can be neither imported nor found.

    Python imports `sitecustomize` when it starts, in the processes that a row starts, too. None in `sys.modules` marks
    a module that is not there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sitecustomize.py").write_text(
        f"import sys\n\nsys.modules.update(dict.fromkeys({list(names)!r}))\n"
    )
    return str(folder)
