"""The base class of sections, and their type check, are two files that every package with sections has."""

import pytest
from house import PACKAGES

NAMES = ("strict_fields.py", "value_types.py")


@pytest.mark.parametrize("name", NAMES)
def test_every_copy_is_the_same(name):
    copies = {
        package.module: package.source / name for package in PACKAGES if (package.source / name).is_file()
    }
    assert "mb_config" in copies
    assert {file.read_bytes() for file in copies.values()} == {copies["mb_config"].read_bytes()}


@pytest.mark.parametrize("name", NAMES)
def test_packages_with_sections_have_one(name):
    with_sections = {package.module for package in PACKAGES if (package.source / "config.py").is_file()}
    assert with_sections <= {package.module for package in PACKAGES if (package.source / name).is_file()}


def test_secrets_have_the_same_names_everywhere():
    copies = [package.source / "masking.py" for package in PACKAGES]
    found = [file.read_bytes() for file in copies if file.is_file()]
    assert (len(found), len({*found})) == (2, 1)
