"""The files on rules, and on paths that cannot be used, are one file in several packages."""

import pytest
from house import PACKAGES

WITH_RULES = {
    "mb_checkpoint",
    "mb_config",
    "mb_data",
    "mb_launch",
    "mb_loop",
    "mb_metrics",
    "mb_models",
    "mb_overlap",
    "mb_resilience",
}
"""Packages with rules."""


@pytest.mark.parametrize("name", ["_rules.py", "_rule_kinds.py", "_unusable_paths.py"])
def test_every_copy_is_the_same(name):
    copies = {
        package.module: package.source / name for package in PACKAGES if (package.source / name).is_file()
    }
    assert {file.read_bytes() for file in copies.values()} == {copies["mb_config"].read_bytes()}


def test_packages_with_rules_have_the_record():
    found = {package.module for package in PACKAGES if (package.source / "_rules.py").is_file()}
    assert found == WITH_RULES
