"""Functions that replace or patch a library's accept its arguments, and those that a later release may add."""

import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import host_gloo
import pytest

from mb_host.megatron.patches import PATCHES

PROGRAM = Path(__file__).with_name("host_signatures.py")


def test_a_substitute_accepts_the_arguments_of_the_installed_torch_and_more():
    lines = subprocess.run(
        [sys.executable, str(PROGRAM)], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert lines[:-1] == []
    assert int(lines[-1].removeprefix("compared ")) > 20


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: f"{patch.name} of {patch.target}")
def test_a_patch_accepts_more_than_it_knows(patch):
    """A patch reads at most the arguments that it needs, and passes all others on."""
    patched = patch.wrap(lambda *args, **kwargs: None)
    code = getattr(patched, "__code__", None)
    assert code.co_flags & 0x04  # *args
    assert code.co_flags & 0x08  # **kwargs


def test_arguments_of_a_later_torch_reach_a_group(two_ranks):
    """A release passes options as keywords (2.15: enable_reconfigure); no option of this one has the second name."""
    assert (
        two_ranks.run(host_gloo.made_with, {"timeout": timedelta(seconds=7), "_threads": 1})
        == [(True, 7.0, 1)] * 2
    )
    assert two_ranks.run(host_gloo.refused_by_torch, {"of_a_later_release": 1}) == [True] * 2
