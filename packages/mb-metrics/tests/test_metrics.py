import logging
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mb_metrics import Metrics, Sink


def test_a_row_per_step_and_a_summary_per_interval(recorder):
    with Metrics([recorder], log_interval=2, wall_clock=lambda: 7.0) as metrics:
        for step in (1, 2, 3):
            metrics.record(step, {"lm loss": step, "grad-norm": None}, samples=4)
        assert recorder.steps == [1, 2]
    assert recorder.steps == [1, 2, 3]
    assert [interval.last.step for interval in recorder.intervals] == [2, 3]
    assert recorder.rows[0].values == {"lm loss": 1.0, "batch-size": 4.0}
    assert recorder.rows[0].time == 7.0


def test_rates_count_all_devices_tokens_and_name_their_denominator(recorder, clock):
    metrics = Metrics(
        [recorder], log_interval=2, world_size=4, flops_per_token=6e9, peak_tflops=3.0, clock=clock
    )
    for step in (1, 2):
        clock.now += 0.5
        metrics.record(step, {}, samples=8, tokens=1000)
    assert recorder.rows[0].values == {"batch-size": 8.0}
    assert recorder.rows[1].values == {
        "batch-size": 8.0,
        "iteration-time": 0.5,
        "world-size": 4.0,
        "throughput/batches_per_sec": 2.0,
        "throughput/samples_per_sec": 16.0,
        "throughput/tokens_per_sec": 2000.0,
        "throughput/device/batches_per_sec": 0.5,
        "throughput/device/samples_per_sec": 4.0,
        "throughput/device/tokens_per_sec": 500.0,
        "throughput/global_batch_size": 8.0,
        "throughput/tflops/device": 3.0,
        "throughput/tflops": 12.0,
        "throughput/mfu": 1.0,
    }
    assert recorder.intervals[0].rates.peak_tflops == 3.0


def test_what_is_not_known_is_not_written(recorder, clock):
    with Metrics([recorder], log_interval=1, flops_per_token=1.0, clock=clock) as metrics:
        metrics.record(1, {}, samples=1)  # no time has passed, no tokens
    assert recorder.rows[0].values == {"batch-size": 1.0, "iteration-time": 0.0, "world-size": 1.0}
    assert recorder.intervals[0].rates.mfu is None


def test_tokens_per_second_is_unknown_when_one_step_has_no_tokens(recorder, clock):
    metrics = Metrics([recorder], log_interval=2, clock=clock)
    metrics.record(1, {})
    clock.now += 1
    metrics.record(2, {}, tokens=10)
    assert recorder.intervals[0].rates.tokens_per_second is None


def test_pauses_and_the_time_before_with_do_not_count(recorder, clock):
    metrics = Metrics([recorder], log_interval=1, clock=clock)
    clock.now += 100  # the model is built
    with metrics:
        clock.now += 1
        with metrics.pause():
            clock.now += 60
        clock.now += 2
        metrics.record(1, {})
    assert recorder.rows[0].values["iteration-time"] == 3.0


def test_throughput_is_averaged_over_its_window(recorder, clock):
    metrics = Metrics([recorder], log_interval=1, throughput_window=2, clock=clock)
    for step, seconds in enumerate((1, 3, 5), start=1):
        clock.now += seconds
        metrics.record(step, {})
    rates = [row.values["throughput/batches_per_sec"] for row in recorder.rows]
    assert rates == [1 / 1, 2 / 4, 2 / 8]
    # of its own window, unlike the step time of the row
    assert [row.values.get("throughput/window_steps") for row in recorder.rows] == [None, 2.0, 2.0]
    assert [row.values["iteration-time"] for row in recorder.rows] == [1.0, 3.0, 5.0]


def test_mean_losses_leave_skipped_steps_out_and_keep_negative_and_nan(recorder):
    metrics = Metrics([recorder], log_interval=4)
    metrics.record(1, {"a": -1.0, "b loss": 1.0, "memory/x": 5.0, "learning-rate": 1.0})
    metrics.record(2, {"a": math.inf, "b loss": math.inf}, skipped=True)
    metrics.record(3, {"a": -3.0, "b loss": math.nan})
    metrics.record(4, {"a": -2.0})
    (interval,) = recorder.intervals
    assert interval.mean_losses["a"] == -2.0
    assert math.isnan(interval.mean_losses["b loss"])
    assert (interval.skipped_steps, interval.nonfinite_steps, len(interval.mean_losses)) == (1, 2, 2)


def test_steps_in_which_nothing_was_counted_are_left_out_of_the_mean_of_a_metric(recorder):
    metrics = Metrics([recorder], log_interval=3)
    for step, accuracy in enumerate((0.25, math.nan, 0.75), start=1):
        metrics.record(step, {"accuracy": accuracy, "recall": math.nan})
    means = recorder.intervals[0].mean_losses
    assert means["accuracy"] == 0.5
    assert math.isnan(means["recall"])


def test_mean_losses_of_skipped_steps_alone_are_theirs(recorder):
    Metrics([recorder], log_interval=1).record(1, {"a": math.inf}, skipped=True)
    assert recorder.intervals[0].mean_losses == {"a": math.inf}


@pytest.mark.parametrize(
    ("first", "given", "counted"),
    [
        (1, (None, None), [8, 16]),
        (0, (None, None), [8, 16]),
        (5, (None, None), [None, None]),  # resumed: earlier samples are not known
        (5, (40, None), [40, 48]),
        (5, (40, 56), [40, 56]),
    ],
)
def test_consumed_samples_are_added_up_only_where_the_start_is_known(recorder, first, given, counted):
    with Metrics([recorder]) as metrics:
        for step, consumed in enumerate(given, start=first):
            metrics.record(step, {}, samples=8, consumed_samples=consumed)
    assert [row.consumed_samples for row in recorder.rows] == counted


def test_an_evaluation_comes_after_the_rows_before_it(recorder):
    with Metrics([recorder], log_interval=10, wall_clock=lambda: 7.0) as metrics:
        metrics.record(1, {"lm loss": 2.0}, samples=8)
        metrics.evaluation(1, {"lm loss": 1.0, "far loss": 100.0, "odd loss": math.nan})
        assert recorder.steps == [1]
    (evaluation,) = recorder.evaluations
    values = evaluation.values
    assert math.isnan(values.pop("odd loss validation"))
    assert math.isnan(values.pop("odd loss validation ppl"))
    assert values == {
        "lm loss validation": 1.0,
        "lm loss validation ppl": math.e,
        "far loss validation": 100.0,
        "far loss validation ppl": math.exp(20),
    }
    assert (evaluation.step, evaluation.time, evaluation.consumed_samples) == (1, 7.0, 8)


def test_flush_writes_rows_and_the_summary_still_has_them_all(recorder):
    metrics = Metrics([recorder], log_interval=3)
    for step in (1, 2):
        metrics.record(step, {})
    metrics.flush()
    assert recorder.steps == [1, 2]
    assert not recorder.intervals
    metrics.record(3, {})
    assert [row.step for row in recorder.intervals[0].rows] == [1, 2, 3]


def test_close_after_flush_still_sums_up(recorder):
    with Metrics([recorder], log_interval=3) as metrics:
        metrics.record(1, {})
        metrics.flush()
    assert [[row.step for row in interval.rows] for interval in recorder.intervals] == [[1]]
    metrics.close()
    assert recorder.closed == 1


@settings(deadline=None)
@given(
    st.integers(1, 7),
    st.lists(st.sampled_from(["record", "flush", "evaluate"]), max_size=40),
)
def test_every_step_comes_once_and_in_order_whatever_the_interval(log_interval, actions):
    class Steps(Sink):
        def __init__(self):
            self.rows, self.summed = [], []

        def write_rows(self, rows):
            self.rows += [row.step for row in rows]

        def write_interval(self, interval):
            self.summed += [row.step for row in interval.rows]
            assert self.summed == self.rows

    sink, step = Steps(), 0
    with Metrics([sink], log_interval=log_interval) as metrics:
        for action in actions:
            if action == "record":
                step += 1
                metrics.record(step, {"lm loss": 1.0})
            elif action == "flush":
                metrics.flush()
                assert sink.rows == list(range(1, step + 1))
            else:
                metrics.evaluation(step, {"lm loss": 1.0})
    assert sink.rows == sink.summed == list(range(1, step + 1))


class Broken(Sink):
    def write_rows(self, rows):
        raise OSError("no space left")

    def write_interval(self, interval):
        raise OSError("still none")


def test_a_sink_that_raises_keeps_nothing_from_the_others(recorder, caplog):
    broken = Broken()
    with caplog.at_level(logging.ERROR), Metrics([broken, recorder], log_interval=1) as metrics:
        metrics.record(1, {})
        metrics.record(2, {})
        assert not caplog.messages
    assert recorder.steps == [1, 2]
    (failure,) = metrics.failures
    assert (failure.sink, failure.count, str(failure.first)) == (broken, 4, "no space left")
    assert caplog.messages == [f"metrics: {failure}"]
    assert str(failure) == "Broken: failed 4 times, first with OSError('no space left')"


def test_without_sinks_nothing_is_read():
    with Metrics([]) as metrics:
        metrics.record(1, {"lm loss": object()})
        metrics.evaluation(1, {"lm loss": object()})


@pytest.mark.parametrize("step", [1, 2])
def test_a_step_is_recorded_once(recorder, step):
    metrics = Metrics([recorder])
    metrics.record(2, {})
    with pytest.raises(ValueError, match=f"step {step} was recorded after step 2"):
        metrics.record(step, {})


def test_after_close_nothing_is_recorded(recorder):
    metrics = Metrics([recorder])
    metrics.close()
    with pytest.raises(ValueError, match="after close"):
        metrics.record(1, {})
    with pytest.raises(ValueError, match="after close"):
        metrics.evaluation(1, {})


@pytest.mark.parametrize(
    "name",
    ["log_interval", "total_steps", "world_size", "flops_per_token", "peak_tflops", "throughput_window"],
)
def test_numbers_must_be_positive(name):
    with pytest.raises(ValueError, match=f"metrics.{name}: must be positive"):
        Metrics([], **{name: 0})


def test_the_error_of_the_loop_is_the_one_that_is_seen(recorder):
    metrics = Metrics([recorder])
    metrics.record(1, {})
    with pytest.raises(ZeroDivisionError), metrics:
        raise ZeroDivisionError
    assert (recorder.steps, recorder.closed) == ([1], 1)
