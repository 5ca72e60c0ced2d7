from collections.abc import Callable

import pytest


class Recorder:
    """A sink that remembers what it is given."""

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
    """A clock that stands until it is moved."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Callable[[], float]:
    return Clock()
