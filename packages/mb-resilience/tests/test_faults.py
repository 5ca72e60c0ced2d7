import os
import random
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mb_resilience import Fault, FaultToleranceConfig, SimulatedFault, agree_on_fault, sample_fault
from mb_resilience.errors import FaultError


class Shared(dict):
    """Store within one process."""

    def set(self, key, value):
        self[key] = value.encode()

    def get(self, key):
        return self[key]

    def check(self, keys):
        return all(key in self for key in keys)


@given(st.integers(0, 1000), st.integers(1, 9), st.integers(0, 100))
def test_unset_values_are_sampled_within_their_bounds(seed, world_size, base):
    settings = FaultToleranceConfig(simulated_fault_base_delay=base)
    fault = sample_fault(settings, world_size=world_size, rng=random.Random(seed))
    assert fault.kind in ("rank_hung", "rank_killed")
    assert 0 <= fault.rank < world_size
    assert base <= fault.delay_seconds <= 1.2 * base
    assert fault == sample_fault(settings, world_size=world_size, rng=random.Random(seed))


def test_set_values_are_used():
    settings = FaultToleranceConfig(
        simulated_fault_type="rank_hung", simulated_fault_rank=0, simulated_fault_base_delay=10
    )
    drawn = sample_fault(settings, world_size=4, rng=random.Random(1))
    assert replace(drawn, delay_seconds=0) == Fault(kind="rank_hung", rank=0, delay_seconds=0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"simulated_fault_rank": 2},
        {"simulated_fault_rank": -1},
        {"simulated_fault_base_delay": -1},
        {"simulated_fault_type": "rank_dizzy"},
    ],
)
def test_invalid_fault_is_rejected_on_every_rank(wrong):
    settings = FaultToleranceConfig(**wrong)
    for rank in (0, 1):
        with pytest.raises(FaultError, match=r"ft\.simulate_fault"):
            agree_on_fault(settings, rng=random.Random(1), store=Shared(), rank=rank, world_size=2)


def test_rank_0_samples_the_fault_for_all_ranks():
    store, settings = Shared(), FaultToleranceConfig(simulated_fault_base_delay=60)
    faults = [
        agree_on_fault(settings, rng=random.Random(rank), store=store, rank=rank, world_size=3)
        for rank in range(3)
    ]
    assert set(faults) == {sample_fault(settings, world_size=3, rng=random.Random(0))}


def test_fault_affects_its_rank_only_and_not_after_the_block():
    struck, logged = [], []
    now = Fault(kind="rank_hung", rank=1, delay_seconds=0.0)
    later = replace(now, delay_seconds=3600.0)
    for rank, fault in ((0, now), (1, later)):
        with SimulatedFault(fault, rank=rank, log=logged.append, send_signal=struck.append):
            pass
    assert (struck, logged) == ([], [])
    fault = SimulatedFault(now, rank=1, log=logged.append, send_signal=struck.append)
    with fault:
        fault._thread.join(60)
    assert struck == [signal.SIGSTOP]
    assert logged == ["simulated fault: rank_hung: rank 1 receives SIGSTOP now, after 0.0 s"]


VICTIM = """
import sys, time
from mb_resilience import Fault, SimulatedFault
with SimulatedFault(Fault(kind=sys.argv[1], rank=0, delay_seconds=0.2), rank=0, log=lambda text: None):
    began = time.monotonic()
    while True:
        time.sleep(0.01)
"""


@pytest.mark.parametrize("kind", ["rank_killed", "rank_hung"])
def test_process_is_killed_or_stopped(kind):
    process = subprocess.Popen([sys.executable, "-c", VICTIM, kind])
    try:
        _, status = os.waitpid(process.pid, os.WUNTRACED)  # returns when it died, or stopped
        if kind == "rank_killed":
            assert (os.WIFSIGNALED(status), os.WTERMSIG(status)) == (True, signal.SIGKILL)
        else:
            assert (os.WIFSTOPPED(status), os.WSTOPSIG(status)) == (True, signal.SIGSTOP)
    finally:
        process.kill()
        process.wait()
