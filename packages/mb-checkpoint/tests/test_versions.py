"""Versions that a manifest records."""

from importlib.metadata import version

from mb_checkpoint.versions import installed_versions


def test_a_distribution_without_metadata_has_no_version():
    assert installed_versions("pytest", "a-tree-on-the-path") == {"pytest": version("pytest")}
