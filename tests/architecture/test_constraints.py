"""The versions with which everything is tested: one list for uv and for pip, of all direct dependencies."""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / ".ci"))

from constraints import (  # noqa: E402
    as_requirements,
    direct_dependencies,
    kept_by_hand,
    locked_versions,
    with_versions,
)

PROJECT = (ROOT / "pyproject.toml").read_text()
OF_OLDER_PYTHONS = {"tomli"}
"""What the workspace's Python does not need."""


def test_both_lists_are_one():
    assert (ROOT / "packages" / "constraints.txt").read_text() == as_requirements(PROJECT)


def test_every_direct_dependency_has_a_version():
    lines = as_requirements(PROJECT).splitlines()[1:]
    assert {line.partition("==")[0] for line in lines} == direct_dependencies(ROOT) - OF_OLDER_PYTHONS


def test_versions_are_renewed_below_those_that_are_set_by_hand():
    assert [each.partition("==")[0] for each in kept_by_hand(PROJECT)] == [
        "torch",
        "megatron-core",
        "nvidia-resiliency-ext",
    ]
    renewed = with_versions(PROJECT, {"numpy": "9.9", "torch": "9.9", "other": "1.0"}, {"numpy", "torch"})
    assert as_requirements(renewed).splitlines()[4:] == ["numpy==9.9; python_version >= '3.12'"]
    assert kept_by_hand(renewed) == kept_by_hand(PROJECT)
    assert with_versions(renewed, {}, ()).count("==") == len(kept_by_hand(PROJECT))


def test_versions_are_those_of_the_lock_file(tmp_path):
    lock = tmp_path / "uv.lock"
    rows = [("a", "1.9.0"), ("a", "1.10.0"), ("b", "2.0.post1")]
    lock.write_text("".join(f'[[package]]\nname = "{name}"\nversion = "{each}"\n' for name, each in rows))
    assert locked_versions(lock) == {"a": "1.10.0", "b": "2.0.post1"}
