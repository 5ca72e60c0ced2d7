import pytest

from mb_metrics import FanOutSink, FilterSink, Metrics, Sink, SinkFailure


def test_steps_and_metrics_are_filtered(recorder):
    sink = FilterSink(recorder, every=2, keep=lambda name: name in ("lm loss", "iteration-time"))
    with Metrics([sink], log_interval=3) as metrics:
        for step in range(1, 7):
            metrics.record(step, {"lm loss": 1.0, "other": 1.0})
    assert [(row.step, list(row.values)) for row in recorder.rows] == [
        (2, ["lm loss"]),
        (4, ["lm loss"]),
        (6, ["lm loss", "iteration-time"]),
    ]
    assert [interval.last.step for interval in recorder.intervals] == [3, 6]
    assert recorder.closed == 1


@pytest.mark.parametrize(
    ("unwanted", "written"),
    [
        ("", ["a loss validation", "a loss validation ppl", "b loss validation", "b loss validation ppl"]),
        (" validation ppl", ["a loss validation", "b loss validation"]),
        ("a loss validation", ["b loss validation", "b loss validation ppl"]),
    ],
)
def test_evaluations_are_filtered_by_the_names_that_are_written(recorder, unwanted, written):
    sink = FilterSink(recorder, keep=lambda name: not unwanted or not name.endswith(unwanted))
    with Metrics([sink]) as metrics:
        metrics.evaluation(1, {"a loss": 1.0, "b loss": 1.0})
    assert list(recorder.evaluations[0].values) == written


def test_an_evaluation_without_a_selected_loss_is_not_forwarded(recorder):
    with Metrics([FilterSink(recorder, keep=lambda name: False)]) as metrics:
        metrics.evaluation(1, {"a": 1.0})
    assert recorder.evaluations == []


def test_sinks_compose_in_any_order(recorder, tmp_path):
    sink = FilterSink(FanOutSink([recorder, recorder]), every=2)
    with Metrics([sink], log_interval=2) as metrics:
        metrics.record(1, {})
        metrics.record(2, {})
        metrics.keep_file(tmp_path)
    assert (recorder.steps, recorder.closed) == ([2, 2], 2)


def test_a_failure_names_the_sink_that_failed(recorder):
    failure = SinkFailure(sink=FilterSink(FilterSink(recorder)), count=1, first=OSError("full"))
    assert str(failure) == "Recorder: failed once, first with OSError('full')"


def test_every_is_positive(recorder):
    with pytest.raises(ValueError, match=r"must be positive \(every=0\)"):
        FilterSink(recorder, every=0)


def test_the_first_error_of_a_sink_is_logged_at_once(caplog):
    class Full(Sink):
        def write_rows(self, rows):
            raise OSError(28, "No space left on device")

    metrics = Metrics([Full()], log_interval=1)
    for step in range(1, 4):
        metrics.record(step, {"lm loss": 1.0})
    assert caplog.messages == [
        "metrics: Full: failed (OSError(28, 'No space left on device')); the run continues, and the sink is called "
        "again for later records"
    ]
    metrics.close()
    assert caplog.messages[-1].startswith("metrics: Full: failed 3 times")
