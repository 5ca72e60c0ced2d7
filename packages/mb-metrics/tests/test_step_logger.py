"""Metrics of a step that are logged in several calls, or only at some steps."""

import pytest

from mb_metrics import Metrics, StepLogger


@pytest.fixture
def metrics(recorder, clock):
    return Metrics([recorder], log_interval=10, clock=clock, wall_clock=lambda: 0.0)


def log(logger, clock, seconds, values, step, **more):
    clock.now += seconds
    logger.log(values, step, **more)


def test_calls_for_one_step_are_one_record(metrics, recorder, clock):
    logger = StepLogger(metrics, samples=4, tokens=8)
    log(logger, clock, 1, {"loss": 2.0}, 1)
    log(logger, clock, 9, {"val_loss": 3.0}, 1)  # an evaluation
    log(logger, clock, 1, {"loss": 1.0}, 2)
    assert logger.recorded_step == 1
    logger.flush()
    assert [(row.step, dict(row.values)) for row in recorder.rows] == [
        (1, {"loss": 2.0, "val_loss": 3.0, "batch-size": 4.0}),
        (2, {"loss": 1.0, "batch-size": 4.0}),
    ]
    logger.close()
    (interval,) = recorder.intervals
    assert (interval.rates.step_seconds, interval.rates.tokens_per_second) == (1.0, 8.0)


def test_steps_that_are_not_logged_count(metrics, recorder, clock):
    logger = StepLogger(metrics, samples=4, start_step=100)
    log(logger, clock, 10, {"loss": 2.0}, 110)
    log(logger, clock, 10, {"loss": 2.0}, 120)
    metrics.close()
    assert [interval.rates.step_seconds for interval in recorder.intervals] == [1.0, 1.0]
    values = recorder.intervals[0].last.values
    assert (values["batch-size"], values["throughput/samples_per_sec"]) == (4.0, 4.0)
    assert values["throughput/global_batch_size"] == 4.0


def test_a_call_before_the_work_of_the_step_does_not_end_its_time(metrics, recorder, clock):
    logger = StepLogger(metrics)
    log(logger, clock, 0, {"lr": 0.1}, 1, ends_step=False)
    log(logger, clock, 5, {"loss": 2.0}, 1)
    metrics.close()
    assert [interval.rates.step_seconds for interval in recorder.intervals] == [5.0]
    assert recorder.rows[0].values["lr"] == 0.1


def test_closing_the_metrics_records_the_last_step(metrics, recorder):
    StepLogger(metrics).log({"loss": 2.0}, 1)
    metrics.close()
    assert (recorder.steps, recorder.closed) == ([1], 1)


def test_a_step_that_did_not_end_is_not_recorded_at_the_end(metrics, recorder):
    StepLogger(metrics).log({"lr": 0.1}, 1, ends_step=False)
    metrics.close()
    assert recorder.steps == []


@pytest.mark.parametrize(("step", "is_recorded"), [(1, True), (3, True), (2, False)])
def test_a_step_that_was_recorded_and_an_earlier_one_are_not_changed(metrics, step, is_recorded):
    logger = StepLogger(metrics)
    logger.log({"loss": 2.0}, 3)
    if is_recorded:
        logger.flush()
    with pytest.raises(ValueError, match=f"step {step} was logged after step 3"):
        logger.log({"loss": 2.0}, step)


def test_steps_may_count_from_0(metrics, recorder):
    logger = StepLogger(metrics)
    for step in (0, 1):
        logger.log({"loss": 2.0}, step)
    logger.close()
    assert recorder.steps == [0, 1]


def test_a_log_interval_of_one_record_has_the_rates_of_its_steps(recorder, clock):
    """As with a library that logs every tenth step: a record is ten steps."""
    metrics = Metrics([recorder], log_interval=10, clock=clock)
    logger = StepLogger(metrics, samples=8)
    for step, seconds in ((10, 20), (20, 10), (30, 5)):
        clock.now += seconds
        logger.log({"loss": 1.0}, step)
    logger.close()
    rates = [row.values["throughput/batches_per_sec"] for row in recorder.rows]
    assert (rates, recorder.rows[-1].consumed_samples) == ([0.5, 1.0, 2.0], 240)
    assert "throughput/window_steps" not in recorder.rows[-1].values


def test_the_throughput_window_counts_steps(recorder, clock):
    metrics = Metrics([recorder], log_interval=10, throughput_window=20, clock=clock)
    logger = StepLogger(metrics)
    for step, seconds in ((10, 20), (20, 10), (30, 5)):
        clock.now += seconds
        logger.log({"loss": 1.0}, step)
    logger.close()
    assert recorder.rows[-1].values["throughput/batches_per_sec"] == 20 / 15
    assert recorder.rows[-1].values["throughput/window_steps"] == 20
