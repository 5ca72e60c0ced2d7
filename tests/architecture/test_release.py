"""The release of one package: its version follows from its changelog, and requirements follow its version."""

import sys
from pathlib import Path

import pytest
import tomllib

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / ".ci"))

from release import ReleaseError, entries_below, next_version, plan_release, text_of, version_in  # noqa: E402


@pytest.fixture
def repository(tmp_path):
    """Return a repository with two packages and a trainer that requires both."""
    for name, version in (("mb-a", "0.2.3"), ("mb-schema", "1.4.0")):
        folder = tmp_path / "packages" / name
        folder.mkdir(parents=True)
        (folder / "pyproject.toml").write_text(
            f'[project]\nname = "{name}"\nversion = "{version}"\ndependencies = ["mb-schema>=1.0,<2"]\n'
        )
        (folder / "CHANGELOG.md").write_text(f"# Changelog of {name}\n\n## {version}\n\n* Old.\n")
    (tmp_path / "meta").mkdir()
    (tmp_path / "meta" / "pyproject.toml").write_text(
        'version = "0.9.0"\ndependencies = ["mb-schema>=1.0,<2", "mb-a[cli,x]>=0.2,<0.3", "mb-ab>=0.2,<0.3"]\n'
    )
    return tmp_path


def unreleased(repository, package, *entries):
    changelog = repository / "packages" / package / "CHANGELOG.md"
    lines = "".join(f"* {entry}\n" for entry in entries)
    changelog.write_text(changelog.read_text().replace("\n## ", f"\n## Unreleased\n\n{lines}\n## ", 1))


@pytest.mark.parametrize(
    ("now", "entries", "new"),
    [
        ("0.2.3", ["Adds x."], "0.2.4"),
        ("0.2.3", ["Adds x.", "Renamed: a -> b."], "0.3.0"),
        ("1.4.0", ["Fix: x."], "1.4.1"),
        ("1.4.0", ["Fix: x.", "Adds y."], "1.5.0"),
        ("1.4.0", ["Removed: x."], "2.0.0"),
    ],
)
def test_the_changelog_determines_the_version(now, entries, new):
    """https://semver.org, where before 1.0 a minor version may break."""
    assert text_of(next_version(tuple(map(int, now.split("."))), entries)) == new


def test_a_compatible_release_changes_its_package_alone(repository):
    unreleased(repository, "mb-a", "Adds x.")
    release = plan_release("mb-a", root=repository, tags={"mb-a-v0.2.3"})
    folder = repository / "packages" / "mb-a"
    assert (release.tag, {*release.files}) == (
        "mb-a-v0.2.4",
        {folder / "pyproject.toml", folder / "CHANGELOG.md"},
    )
    for file, text in release.files.items():
        file.write_text(text)
    assert version_in(folder / "pyproject.toml") == (0, 2, 4)
    assert entries_below(folder / "CHANGELOG.md", "0.2.4") == ["Adds x."]
    assert entries_below(folder / "CHANGELOG.md", "0.2.3") == ["Old."]


def test_ranges_follow_a_release_that_breaks(repository):
    unreleased(repository, "mb-a", "Breaking: x.")
    release = plan_release("mb-a", root=repository, tags={"mb-a-v0.2.3"})
    trainer = tomllib.loads(release.files[repository / "meta" / "pyproject.toml"])
    assert trainer["dependencies"] == ["mb-schema>=1.0,<2", "mb-a[cli,x]>=0.3,<0.4", "mb-ab>=0.2,<0.3"]
    unreleased(repository, "mb-schema", "Removed: x.")
    release = plan_release("mb-schema", root=repository, tags={"mb-schema-v1.4.0"})
    assert all("mb-schema>=2.0,<3" in text for file, text in release.files.items() if file.suffix == ".toml")
    assert len(release.files) == 4


def test_a_version_without_a_tag_is_released_as_it_is(repository):
    release = plan_release("mb-a", root=repository, tags=set())
    assert (release.tag, release.files) == ("mb-a-v0.2.3", {})


@pytest.mark.parametrize(
    ("package", "version", "message"),
    [
        (
            "mb-a",
            None,
            "0.2.3 is released, and packages/mb-a/CHANGELOG.md has no entry below '## Unreleased'",
        ),
        ("mb-c", None, "mb-c: no such package. Name one of mb-a, mb-schema, mb-trainer"),
        ("mb-schema", "1.4.0", "1.4.0 is not later than 1.4.0"),
        ("mb-schema", "1.5", "1.5: is not a version of three numbers"),
    ],
)
def test_what_cannot_be_released(repository, package, version, message):
    unreleased(repository, "mb-schema", "Adds x.")
    with pytest.raises(ReleaseError) as caught:
        plan_release(package, root=repository, tags={"mb-a-v0.2.3", "mb-schema-v1.4.0"}, version=version)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "file",
    [*sorted(ROOT.glob("packages/*/CHANGELOG.md")), ROOT / "meta" / "CHANGELOG.md"],
    ids=lambda f: f.parent.name,
)
def test_the_newest_heading_is_the_version_or_unreleased(file):
    """So that what changes after a release does not stand below its number."""
    newest = file.read_text().partition("\n## ")[2].partition("\n")[0]
    assert newest in ("Unreleased", text_of(version_in(file.with_name("pyproject.toml"))))
