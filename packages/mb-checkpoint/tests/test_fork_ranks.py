"""What is said when the process that forks the ranks is gone."""

import sys

import pytest

if sys.platform != "linux":
    pytest.skip("ranks are forked, with signals of Linux", allow_module_level=True)

from fork_ranks import Forge, RanksFailedError


def test_each_run_after_the_end_says_so_and_closing_twice_is_no_error():
    forge = Forge()
    forge._process.kill()
    forge._process.wait()
    for _ in range(2):
        with pytest.raises(RanksFailedError, match="the process that forks the ranks has ended"):
            forge.run(1, print, timeout_seconds=1.0)
    forge.close()
