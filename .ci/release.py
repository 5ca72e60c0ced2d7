"""The next release of one package, from its changelog: version, files that change, and tag. `nox -s release` uses it.

Entries of what is not released are below the heading `## Unreleased` of the package's CHANGELOG.md, or below that of
the version in its pyproject.toml as long as this version has no tag. Before 1.0, an entry that begins with "Breaking:",
"Renamed:" or "Removed:" makes a new minor version and every other one a new patch; from 1.0 on a new major version,
and a new minor version, or a patch if every entry begins with "Fix:".
"""

import re
from dataclasses import dataclass
from pathlib import Path

UNRELEASED = "Unreleased"
_BREAKING = ("Breaking:", "Renamed:", "Removed:")
_FIX = "Fix:"
_VERSION = re.compile(r'^version = "(\d+)\.(\d+)\.(\d+)"$', re.MULTILINE)

Version = tuple[int, int, int]


class ReleaseError(Exception):
    """A package that cannot be released as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Release of a package: its version, and the files that it changes."""

    package: str
    version: Version
    files: dict[Path, str]
    """Path to its new text; empty if the version was already written everywhere."""

    @property
    def tag(self) -> str:
        """Name of the tag, such as `mb-metrics-v0.3.0`."""
        return f"{self.package}-v{text_of(self.version)}"


def text_of(version: Version) -> str:
    """Return a version as text."""
    return ".".join(map(str, version))


def folder_of(package: str, root: Path) -> Path:
    """Return the folder of a package.

    Raises:
        ReleaseError: There is no such package.
    """
    folder = root / "meta" if package == "mb-trainer" else root / "packages" / package
    if not (folder / "pyproject.toml").is_file():
        known = sorted(path.name for path in (root / "packages").glob("mb-*"))
        raise ReleaseError(f"{package}: no such package. Name one of {', '.join(known)}, mb-trainer.")
    return folder


def plan_release(package: str, *, root: Path, tags: set[str], version: str | None = None) -> Release:
    """Return the next release of a package.

    Args:
        package: Name of the distribution.
        root: Folder of the repository.
        tags: Tags of the repository.
        version: Version to release; None: it follows from the changelog.

    Raises:
        ReleaseError: There is no such package, nothing to release, or the version is not a later one.
    """
    folder = folder_of(package, root)
    project, changelog = folder / "pyproject.toml", folder / "CHANGELOG.md"
    now = version_in(project)
    entries = entries_below(changelog, UNRELEASED)
    if f"{package}-v{text_of(now)}" not in tags and not entries and version is None:
        return Release(package=package, version=now, files={})
    if not entries:
        raise ReleaseError(
            f"{package}: {text_of(now)} is released, and {changelog.relative_to(root)} has no entry below "
            f"'## {UNRELEASED}'. Write what has changed, an entry a line."
        )
    new = next_version(now, entries) if version is None else parse_version(version)
    if new <= now:
        raise ReleaseError(
            f"{package}: {text_of(new)} is not later than {text_of(now)}. Name a later version."
        )
    files = {
        project: _VERSION.sub(f'version = "{text_of(new)}"', project.read_text(), count=1),
        changelog: changelog.read_text().replace(f"\n## {UNRELEASED}\n", f"\n## {text_of(new)}\n", 1),
    }
    if compatible_range(new) != compatible_range(now):
        files |= wider_ranges(package, now, new, root=root, known=files)
    return Release(package=package, version=new, files=files)


def version_in(project: Path) -> Version:
    """Return the version of a pyproject.toml."""
    found = _VERSION.search(project.read_text())
    if found is None:
        raise ReleaseError(f"{project}: has no version of three numbers.")
    return parse_version(".".join(found.groups()))


def parse_version(text: str) -> Version:
    """Return the version of a text.

    Raises:
        ReleaseError: It has not three numbers.
    """
    parts = text.split(".")
    if len(parts) != 3 or not all(part.isdecimal() for part in parts):
        raise ReleaseError(f"{text}: is not a version of three numbers, such as 0.3.0.")
    major, minor, patch = map(int, parts)
    return major, minor, patch


def entries_below(changelog: Path, heading: str) -> list[str]:
    """Return the entries below a heading, without their bullets."""
    _, _, rest = changelog.read_text().partition(f"\n## {heading}\n")
    return re.findall(r"^\* (.*)$", rest.partition("\n## ")[0], re.MULTILINE)


def next_version(now: Version, entries: list[str]) -> Version:
    """Return the version after `now` that the entries require."""
    major, minor, patch = now
    breaks = any(entry.startswith(_BREAKING) for entry in entries)
    if major == 0:
        return (0, minor + 1, 0) if breaks else (0, minor, patch + 1)
    if breaks:
        return major + 1, 0, 0
    return (
        (major, minor, patch + 1)
        if all(entry.startswith(_FIX) for entry in entries)
        else (major, minor + 1, 0)
    )


def compatible_range(version: Version) -> str:
    """Return the range of the versions that are compatible with one: `>=0.3,<0.4`, `>=1.2,<2`."""
    major, minor, _ = version
    return f">=0.{minor},<0.{minor + 1}" if major == 0 else f">={major}.0,<{major + 1}"


def wider_ranges(
    package: str, now: Version, new: Version, *, root: Path, known: dict[Path, str]
) -> dict[Path, str]:
    """Return the pyproject files whose requirement of a package does not include its new version, with that range."""
    requirement = re.compile(rf'("{re.escape(package)}(?:\[[^\]]*\])?){re.escape(compatible_range(now))}"')
    changed = {}
    for project in [*sorted(root.glob("packages/*/pyproject.toml")), root / "meta" / "pyproject.toml"]:
        text = known.get(project, project.read_text())
        replaced = requirement.sub(rf'\g<1>{compatible_range(new)}"', text)
        if replaced != text:
            changed[project] = replaced
    return changed
