"""Versions of installed distributions, and their comparison."""

from importlib.metadata import version

import pytest

from mb_schema.versions import at_least, installed_version, installed_versions, release


def test_a_distribution_without_metadata_has_no_version():
    assert installed_versions("pytest", "a-tree-on-the-path") == {"pytest": version("pytest")}
    assert installed_version("a-tree-on-the-path") is None


@pytest.mark.parametrize(
    ("version", "minimum", "expected"),
    [
        ("2.7.0.dev0", (2, 7), True),
        ("2.7.0+abc", (2, 7), True),
        ("2.10", (2, 9), True),
        ("2.11.0a0+5228986c39.nv25.05", (2, 11), True),
        ("2.6.9", (2, 7), False),
        ("2", (2, 1), False),
        ("unknown", (1,), False),
    ],
)
def test_versions_compare_by_their_numbers(version, minimum, expected):
    assert at_least(version, *minimum) is expected


@pytest.mark.parametrize(
    ("version", "numbers"),
    [("2.6.0a0+34c6371d24", (2, 6, 0)), ("2.7.0.dev0", (2, 7, 0)), ("2.20", (2, 20)), ("unknown", ())],
)
def test_a_release_is_the_numbers_at_the_beginning(version, numbers):
    assert release(version) == numbers
