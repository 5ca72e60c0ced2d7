import io

import pytest

from mb_metrics import ConsoleSink, Metrics


def left_after(recorder, clock, steps, **length):
    """Record steps of (seconds before, samples) and return the time left after each."""
    first = length.pop("first", 1)
    with Metrics([recorder], log_interval=1, clock=clock, **length) as metrics:
        for step, (seconds, samples) in enumerate(steps, start=first):
            clock.now += seconds
            metrics.record(step, {}, samples=samples)
    return [interval.seconds_left for interval in recorder.intervals]


def test_the_estimate_uses_the_steps_after_the_first(recorder, clock):
    assert left_after(recorder, clock, [(50, 8), (1, 8), (1, 8)], total_steps=10) == [450, 8, 7]


def test_a_resumed_job_counts_its_own_steps(recorder, clock):
    steps = [(1, 8), (1, 8), (1, 8)]
    assert left_after(recorder, clock, steps, total_steps=1000, first=901) == [99, 98, 97]


def test_evaluations_and_checkpoints_count_in_the_time_left_and_not_in_the_step(recorder, clock):
    with Metrics([recorder], log_interval=1, total_steps=10, clock=clock) as metrics:
        for step in (1, 2, 3):
            clock.now += 1
            metrics.record(step, {})
            with metrics.pause():
                clock.now += 3
    assert [interval.rates.step_seconds for interval in recorder.intervals] == [1, 1, 1]
    assert [interval.seconds_left for interval in recorder.intervals] == [9, 4 * 8, 4 * 7]


def test_samples_determine_the_time_left_while_the_batch_grows(recorder, clock):
    with Metrics([recorder], log_interval=1, total_steps=4, total_samples=100, clock=clock) as metrics:
        for step, samples in ((1, 10), (2, 10), (3, 40)):
            clock.now += samples / 10
            metrics.record(step, {}, samples=samples)
    assert [interval.seconds_left for interval in recorder.intervals] == [9, 8, 4]


def test_no_length_no_time_left(recorder, clock):
    assert left_after(recorder, clock, [(1, 8)]) == [None]


def test_times_as_metrics_in_their_unit(recorder, clock):
    with Metrics([recorder], log_interval=1, total_steps=3, time_unit="minutes", clock=clock) as metrics:
        clock.now += 60
        metrics.record(1, {})
    values = recorder.rows[0].values
    assert (values["time/total"], values["time/remaining_estimate"]) == (1.0, 2.0)


def test_an_unknown_unit_is_rejected(recorder):
    with pytest.raises(ValueError, match="unknown unit 'weeks'"):
        Metrics([recorder], time_unit="weeks")


def test_the_console_shows_time_left_and_memory(clock):
    stream = io.StringIO()
    memory = {"memory/mem-max-allocated-gigabytes": 12.345}
    with Metrics(
        [ConsoleSink(stream, format="megatron")], log_interval=1, total_steps=90_001, clock=clock
    ) as metrics:
        clock.now += 1
        metrics.record(1, memory)
    assert stream.getvalue().endswith(" | peak memory: 12.3 GB | time left: 1 d 1:00:00\n")


def test_samplers_are_called_at_each_log_interval(recorder):
    with Metrics([recorder], log_interval=2, samplers=[lambda step: {"memory/x": 10.0 * step}]) as metrics:
        for step in (1, 2, 3):
            metrics.record(step, {})
    assert [row.values.get("memory/x") for row in recorder.rows] == [None, 20.0, 30.0]
