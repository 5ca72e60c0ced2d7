"""What people write first: a single sink, a value without a name, a function as a sink, a wrong precision."""

import io

import pytest

from mb_metrics import ConsoleSink, Metrics, peak_tflops


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
