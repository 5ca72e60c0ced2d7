import os
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # tests import sample_runs by name


os.environ["WANDB_MODE"] = "offline"  # read once per process
os.environ["WANDB_SILENT"] = "true"


class Recorder:
    """A sink that stores its records."""

    def __init__(self):
        self.rows, self.intervals, self.evaluations, self.closed = [], [], [], 0

    def write_rows(self, rows):
        self.rows += rows

    def write_interval(self, interval):
        self.intervals.append(interval)

    def write_evaluation(self, evaluation):
        self.evaluations.append(evaluation)

    def close(self):
        self.closed += 1

    @property
    def steps(self):
        return [row.step for row in self.rows]


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


class Clock:
    """A clock that advances only when it is set."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Callable[[], float]:
    return Clock()


@pytest.fixture(scope="session")
def four_ranks():
    """Four gloo ranks in which Megatron Core can be imported; this process never imports it."""
    mb_host = pytest.importorskip("mb_host")
    if find_spec("megatron") is None or find_spec("megatron.core") is None:
        pytest.skip("needs megatron-core (pip install mb-metrics[mcore])")
    with mb_host.RankPool(4, timeout_seconds=200, imports=["megatron.core"]) as pool:
        yield pool
