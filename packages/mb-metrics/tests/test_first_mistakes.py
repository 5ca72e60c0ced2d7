"""What people write first: a single sink, a value without a name, a function as a sink, a wrong precision."""

import io
from decimal import Decimal
from fractions import Fraction

import pytest

from mb_metrics import (
    BackgroundSink,
    ConsoleSink,
    FilterSink,
    JsonlSink,
    Metrics,
    StepLogger,
    peak_tflops,
    read_jsonl,
)
from mb_metrics.recorder.recorded_steps import split_device_values


def test_a_single_sink_needs_no_list():
    stream = io.StringIO()
    with Metrics(ConsoleSink(stream), log_interval=1) as metrics:
        metrics.record(1, {"lm loss": 2.0})
    assert "lm loss 2 " in stream.getvalue()


@pytest.mark.parametrize("sinks", [[print], print])
def test_a_function_is_not_a_sink(sinks):
    with pytest.raises(TypeError, match="is not a sink, because it has no method write_rows"):
        Metrics(sinks)


@pytest.mark.parametrize("sinks", [[], ConsoleSink(io.StringIO())])
def test_a_value_needs_a_name(sinks):
    with (
        Metrics(sinks) as metrics,
        pytest.raises(TypeError, match=r"Pass the metrics.*record\(2, \{'lm loss': 1\.0\}\)"),
    ):
        metrics.record(2, 1.0)


def test_a_precision_that_does_not_exist_is_an_error():
    with pytest.raises(ValueError, match=r"'bfloat' is not a known precision\. Use a name such as bfloat16"):
        peak_tflops("NVIDIA H100", "bfloat")
    assert peak_tflops("NVIDIA H100", "torch.bfloat16") == 989.4


class OnlyRows:
    def write_rows(self, rows):
        raise AssertionError


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Metrics([ConsoleSink]), "ConsoleSink is a class, so it cannot write"),
        (lambda: Metrics(OnlyRows()), "has no method write_interval.*let a custom one inherit from Sink"),
        (lambda: BackgroundSink(None), "None is not a sink"),
        (lambda: FilterSink(None), "None is not a sink"),
        (lambda: FilterSink(ConsoleSink(), keep=["lm loss"]), r"keep=\['lm loss'\] is not a function"),
        (lambda: Metrics([], log_interval="10"), r"metrics\.log_interval: is a str"),
        (lambda: Metrics([], log_interval=2.5), r"metrics\.log_interval: must be an integer"),
        (lambda: JsonlSink("unused.jsonl", resume_step="5"), "resume_step='5' is a str"),
    ],
)
def test_arguments_of_a_wrong_type_are_rejected_at_once(make, message):
    with pytest.raises(TypeError, match=message):
        make()


@pytest.mark.parametrize(
    ("step", "values", "counts", "message"),
    [
        (None, {}, {}, "step=None is a NoneType"),
        (1.0, {}, {}, r"step=1\.0 is a float"),
        ("1", {}, {}, "step='1' is a str"),
        (1, {7: 1.0}, {}, "7 is a int, but a name of a metric is text"),
        (1, {}, {"samples": "3"}, "samples='3' is a str"),
        (1, {}, {"tokens": -3}, "tokens=-3 is negative"),
    ],
)
def test_a_step_that_cannot_be_recorded_writes_nothing(tmp_path, step, values, counts, message):
    with Metrics(JsonlSink(tmp_path / "metrics.jsonl"), log_interval=1) as metrics:
        with pytest.raises((TypeError, ValueError), match=message):
            metrics.record(step, values, **counts)
        if not isinstance(step, int):
            with pytest.raises(TypeError, match=message):
                metrics.evaluation(step, {"loss": 1.0})
            with pytest.raises(TypeError, match=message):
                StepLogger(metrics).log({"loss": 1.0}, step)
    assert list(read_jsonl(tmp_path / "metrics.jsonl")) == []


def test_a_sampler_that_returns_nothing_is_an_error():
    metrics = Metrics(ConsoleSink(io.StringIO()), log_interval=1, samplers=[lambda step: None])
    with pytest.raises(TypeError, match="returned None, not a mapping"):
        metrics.record(1, {})
    metrics.close()


def test_metrics_called_step_and_time_do_not_replace_those_of_the_record(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with Metrics(JsonlSink(path), log_interval=1, wall_clock=lambda: 5.0) as metrics:
        metrics.record(1, {"step": 0.25, "time": 7.0})
    (row,) = read_jsonl(path)
    assert (row["step"], row["time"], row["metric/step"], row["metric/time"]) == (1, 5.0, 0.25, 7.0)
    JsonlSink(path, resume_step=1).close()


@pytest.mark.parametrize("value", [True, 2, 1.5, Decimal("1.5"), Fraction(3, 2)])
def test_every_kind_of_number_is_a_metric(value):
    assert recorded(value) == float(value)


@pytest.mark.parametrize("kind", ["bool_", "float32", "float16", "int8", "array", "one-element array"])
def test_numbers_of_numpy_are_metrics(kind):
    numpy = pytest.importorskip("numpy")
    makers = {"array": lambda: numpy.array(1.0), "one-element array": lambda: numpy.array([[1.0]])}
    assert recorded(makers.get(kind, lambda: getattr(numpy, kind)(1))()) == 1.0


@pytest.mark.parametrize("value", [1j, "1", b"1", [1.0], object()])
def test_other_values_are_no_metrics(value):
    with pytest.raises(TypeError, match="a metric is a number, or a tensor or array with one element"):
        recorded(value)


def test_an_array_of_several_or_of_complex_numbers_is_no_metric():
    numpy = pytest.importorskip("numpy")
    for value in (numpy.ones(2), numpy.array(1j), numpy.array("a")):
        with pytest.raises(TypeError, match="a metric is a number"):
            recorded(value)


def test_a_complex_tensor_is_no_metric():
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match=r"'x' is complex\. A metric is a real number"):
        recorded(torch.tensor(1 + 1j))


def recorded(value):
    """Return what a step with a value holds."""
    numbers, packed = split_device_values({"x": value})
    assert packed == []
    return numbers["x"]
