import errno
import logging
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mb_metrics import BackgroundSink, Metrics, MetricsRow, Sink


def row(step):
    return MetricsRow(step=step, time=0.0, values={"lm loss": 1.0}, skipped=False, consumed_samples=None)


class Gate(Sink):
    """A sink that blocks until it is opened."""

    def __init__(self):
        self.entered, self.opened, self.steps, self.closed = threading.Event(), threading.Event(), [], 0

    def write_rows(self, rows):
        self.entered.set()
        self.opened.wait(30)
        self.steps += [row.step for row in rows]

    def close(self):
        self.closed += 1


class Flaky(Sink):
    """A sink that raises the given errors, then works."""

    def __init__(self, errors):
        self.errors, self.steps = list(errors), []

    def write_rows(self, rows):
        if self.errors:
            error = self.errors.pop(0)
            if error is not None:
                raise error
        self.steps += [row.step for row in rows]


def run(sink, steps, **settings):
    background = BackgroundSink(sink, retry_seconds=0.001, **settings)
    for step in range(1, steps + 1):
        background.write_rows([row(step)])
    background.close()
    return background


def test_a_blocked_sink_does_not_block_training():
    gate = Gate()
    with Metrics([BackgroundSink(gate)], log_interval=1) as metrics:
        for step in range(1, 51):
            metrics.record(step, {"lm loss": 1.0})
        assert gate.steps == []
        gate.opened.set()
    assert (gate.steps, gate.closed, metrics.failures) == (list(range(1, 51)), 1, ())


def test_a_transient_error_delays_and_loses_nothing(caplog):
    sink = Flaky([ConnectionError("down"), TimeoutError("still"), OSError("disk full")])
    with caplog.at_level(logging.WARNING):
        background = run(sink, 3)
    (failure,) = background.failures
    assert (sink.steps, failure.count, str(failure.first), failure.dropped) == ([1, 2, 3], 3, "down", 0)
    assert caplog.messages == [
        "metrics: Flaky raised ConnectionError('down'); records are queued and retried",
        "metrics: Flaky recovered; records are written again",
    ]
    assert (
        str(failure)
        == "Flaky: failed 3 times, first with ConnectionError('down'); no steps, evaluations or files were dropped"
    )


def test_the_end_does_not_wait_for_a_full_disk(caplog):
    full = OSError(errno.ENOSPC, "No space left on device")
    background = BackgroundSink(Flaky([full] * 1000), retry_seconds=60.0, close_seconds=60.0)
    for step in range(1, 4):
        background.write_rows([row(step)])
    began = time.monotonic()
    background.close()
    assert time.monotonic() - began < 10
    (failure,) = background.failures
    assert failure.dropped == 3


def test_the_end_reports_that_it_waits_for_a_sink_that_is_down(caplog):
    background = BackgroundSink(
        Flaky([ConnectionError("down")] * 1000), retry_seconds=0.01, close_seconds=1.5
    )
    background.write_rows([row(1)])
    while not background.failures:
        time.sleep(0.01)
    with caplog.at_level(logging.WARNING):
        background.close()
    assert "metrics: Flaky is down; the end of the run waits for it, for at most 2 s" in caplog.messages


@pytest.mark.parametrize("error", [KeyError("name"), FileNotFoundError("gone")])
def test_another_error_loses_one_record(error):
    sink = Flaky([None, error])
    (failure,) = run(sink, 3).failures
    assert (sink.steps, failure.count, failure.dropped) == ([1, 3], 1, 1)


def test_a_sink_that_always_fails_is_logged_once(caplog):
    run(Flaky([PermissionError("no key")] * 5), 5)
    assert caplog.messages == ["metrics: Flaky raised PermissionError('no key'); the record is lost"]


@settings(deadline=None, max_examples=30)
@given(st.lists(st.sampled_from([None, ConnectionError("down")]), max_size=12), st.integers(1, 8))
def test_after_transient_errors_every_step_arrives_once_and_in_order(errors, steps):
    sink = Flaky(errors)
    run(sink, steps, capacity=None)
    assert sink.steps == list(range(1, steps + 1))


def blocked(calls, **settings):
    """Write steps in some calls while the sink is blocked by the first; return the written steps and the failure."""
    gate = Gate()
    background = BackgroundSink(gate, **settings)
    background.write_rows([row(1)])
    gate.entered.wait(30)
    for rows in calls:
        background.write_rows(rows)
    background.fail()
    gate.opened.set()
    background.close()
    return gate.steps, background.failures[0]


WIDE = [[replace(row(step), values={"a": 1.0, "b": 2.0, "c": 3.0})] for step in range(2, 8)]


@pytest.mark.parametrize(
    ("calls", "capacity", "counts", "written"),
    [
        (WIDE, 7, "values", [1, 6, 7]),  # two of three values
        (WIDE, 3, "records", [1, 5, 6, 7]),
        # the newest call, whatever its size: the summary of an interval, and the end of the run, follow it at once
        ([[row(2), row(3)], [row(4), row(5)]], 1, "values", [1, 4, 5]),
    ],
)
def test_a_queue_is_as_long_as_its_capacity_allows(calls, capacity, counts, written):
    steps, failure = blocked(calls, capacity=capacity, counts=counts)
    assert (steps, failure.dropped) == (written, 1 + sum(map(len, calls)) - len(written))


def test_a_full_queue_drops_the_oldest_and_warns_once(caplog):
    steps, failure = blocked([[row(step)] for step in range(2, 8)], capacity=3)
    assert (steps, failure.dropped, failure.first) == ([1, 5, 6, 7], 3, None)
    assert caplog.messages == [
        "metrics: Gate is too slow or down; the queue is full and the oldest records are dropped"
    ]
    assert str(failure) == "Gate: 3 steps, evaluations or files were dropped"


def test_a_record_that_always_fails_is_dropped_first_from_a_full_queue():
    class Poisoned(Sink):
        def __init__(self):
            self.steps = []

        def write_rows(self, rows):
            if rows[0].step == 1:
                raise ConnectionError("this one")
            self.steps.append(rows[0].step)

    poisoned = Poisoned()
    background = BackgroundSink(poisoned, capacity=2, retry_seconds=60)
    background.write_rows([row(1)])
    while not background.failures:
        pass
    for step in (2, 3, 4, 5):
        background.write_rows([row(step)])
    background.close()
    assert (poisoned.steps[-2:], background.failures[0].dropped) == ([4, 5], 5 - len(poisoned.steps))


def test_close_gives_up_and_counts_what_is_left(caplog):
    gate = Gate()
    with Metrics([BackgroundSink(gate, close_seconds=0.05)], log_interval=1) as metrics:
        for step in (1, 2, 3):
            metrics.record(step, {})
    assert (metrics.failures[0].dropped, gate.closed) == (3, 0)
    assert caplog.messages == ["metrics: Gate: 3 steps, evaluations or files were dropped"]
    gate.opened.set()


def test_close_gives_up_on_a_sink_that_is_down():
    sink = Flaky([ConnectionError("down")] * 10_000)
    (failure,) = run(sink, 4, close_seconds=0.05).failures
    assert (sink.steps, failure.dropped) == ([], 4)


def test_files_and_a_failed_run_reach_a_sink_that_supports_them(recorder):
    class Keeper(Sink):
        def __init__(self):
            self.seen = []

        def write_file(self, path, name):
            self.seen.append((path, name))

        def fail(self):
            self.seen.append("failed")

        def close(self):
            self.seen.append("closed")

    keeper = Keeper()
    metrics = Metrics([BackgroundSink(keeper), BackgroundSink(recorder), recorder])
    metrics.keep_file("checkpoints/step_1")
    with pytest.raises(KeyboardInterrupt), metrics:
        raise KeyboardInterrupt
    assert keeper.seen == [(Path("checkpoints/step_1"), "step_1"), "failed", "closed"]
    assert recorder.closed == 2


def test_a_queue_needs_a_positive_capacity():
    with pytest.raises(ValueError, match="capacity=0"):
        BackgroundSink(Gate(), capacity=0)
