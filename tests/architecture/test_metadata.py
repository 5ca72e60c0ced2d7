"""Metadata of the distributions, as a package index shows it."""

import re
from pathlib import Path

import pytest
import tomllib

ROOT = Path(__file__).parents[2]
PROJECTS = [*sorted(ROOT.glob("packages/*/pyproject.toml")), ROOT / "meta" / "pyproject.toml"]


@pytest.fixture(params=PROJECTS, ids=lambda path: path.parent.name)
def project(request):
    """Return the folder of a distribution and its table `project`."""
    return request.param.parent, tomllib.loads(request.param.read_text())["project"]


def test_the_license_is_in_the_wheel(project):
    folder, table = project
    # license files of code of others, which a package contains, carry its name: LICENSE.uPlot
    vendored = sorted(str(file.relative_to(folder)) for file in (folder / "src").rglob("LICENSE.*"))
    license = "Apache-2.0 AND MIT" if vendored else "Apache-2.0"
    assert (table["license"], table["license-files"]) == (license, ["LICENSE", *vendored])
    assert (folder / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()


def test_a_distribution_can_be_found(project):
    _, table = project
    assert len(table["keywords"]) >= 3
    assert len(table["description"]) <= 120


def test_classifiers_name_the_pythons_from_the_lowest_on(project):
    folder, table = project
    lowest = int(table["requires-python"].removeprefix(">=3."))
    prefix = "Programming Language :: Python :: 3."
    found = [int(each.removeprefix(prefix)) for each in table["classifiers"] if each.startswith(prefix)]
    assert found == list(range(lowest, found[-1] + 1))
    assert "Typing :: Typed" in table["classifiers"]
    assert list((folder / "src").glob("*/py.typed"))


def test_a_readme_has_no_links_into_the_clone(project):
    """It is the page of a wheel, which has neither the documentation nor the other packages."""
    folder, _ = project
    links = re.findall(r"\]\(([^)]+)\)", (folder / "README.md").read_text())
    assert [link for link in links if not link.startswith(("https://", "#"))] == []


def test_the_editable_installation_has_all_packages():
    lines = (ROOT / "packages" / "editable.txt").read_text().splitlines()[1:]
    folders = {f"-e ./{file.parent.relative_to(ROOT)}" for file in PROJECTS}
    assert (set(lines), lines[0]) == (folders, "-e ./packages/mb-schema")
