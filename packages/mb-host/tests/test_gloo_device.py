"""Process groups of gloo share a device; a forked process makes its own."""

import sys

import host_gloo
import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
THREADS_OF_A_GROUP = 2


def test_a_group_adds_its_two_threads_and_no_device(two_ranks):
    assert two_ranks.run(host_gloo.threads_of_groups, 5) == [(5 * THREADS_OF_A_GROUP, [2.0, 2.0])] * 2


def test_a_forked_process_makes_a_device_of_its_own(two_ranks):
    assert two_ranks.run(host_gloo.sum_in_a_fork) == [7, 7]
