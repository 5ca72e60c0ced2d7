"""The versions of all direct dependencies with which everything is tested, for `uv run` and `pip install -c`.

No lock file is in the repository. `nox -s constraints` resolves the newest versions, and writes them into the list
`constraint-dependencies` of pyproject.toml and into constraints.txt. Versions above its mark are set by hand.
"""

import re
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path

import tomllib

MARK = "    # written by nox -s constraints:\n"
_LIST = re.compile(rf"{re.escape(MARK)}(.*?)\]\n", re.DOTALL)
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_FROM_3_12 = "python_version >= '3.12'"
"""Marker of each version: packages that support older Pythons have other versions there."""


def direct_dependencies(root: Path) -> set[str]:
    """Return the names of what the packages and the workspace require themselves, extras and groups included."""
    found: set[str] = set()
    for file in [
        root / "pyproject.toml",
        *root.glob("packages/*/pyproject.toml"),
        root / "meta" / "pyproject.toml",
    ]:
        project = tomllib.loads(file.read_text())
        lists = [
            project["project"]["dependencies"],
            *project["project"].get("optional-dependencies", {}).values(),
            *project.get("dependency-groups", {}).values(),
        ]
        found |= {normalised(_NAME.match(each)[0]) for each in chain(*lists)}  # type: ignore[index]
    return {name for name in found if not name.startswith("mb-")}


def normalised(name: str) -> str:
    """Return the name of a distribution as an index compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def locked_versions(lock: Path) -> dict[str, str]:
    """Return the versions in a lock file of uv; the newest of those for several platforms."""
    found: dict[str, str] = {}
    for package in tomllib.loads(lock.read_text())["package"]:
        name, version = package["name"], package.get("version")
        if version is not None and (name not in found or numbers(version) > numbers(found[name])):
            found[name] = version
    return found


def numbers(version: str) -> list[int]:
    """Return the numbers of a version, for comparison."""
    return [int(part) for part in re.findall(r"\d+", version)]


def with_versions(pyproject: str, versions: Mapping[str, str], names: Iterable[str]) -> str:
    """Return the text of the workspace's pyproject.toml with these versions below the mark."""
    by_hand = {normalised(_NAME.match(each)[0]) for each in kept_by_hand(pyproject)}  # type: ignore[index]
    written = sorted(name for name in set(names) - by_hand if name in versions)
    lines = "".join(f'    "{name}=={versions[name]}; {_FROM_3_12}",\n' for name in written)
    return _LIST.sub(lambda _: f"{MARK}{lines}]\n", pyproject, count=1)


def kept_by_hand(pyproject: str) -> list[str]:
    """Return the constraints above the mark."""
    before = pyproject.partition("constraint-dependencies = [\n")[2].partition(MARK)[0]
    return re.findall(r'^\s*"([^"]+)"', before, re.MULTILINE)


def as_requirements(pyproject: str) -> str:
    """Return the text of constraints.txt: all constraints of the workspace."""
    constraints = tomllib.loads(pyproject)["tool"]["uv"]["constraint-dependencies"]
    head = (
        "# Versions with which everything is tested: "
        "pip install -c packages/constraints.txt ./packages/mb-* ./meta\n"
    )
    return head + "".join(f"{each}\n" for each in constraints)
