import dataclasses
import io
import math
import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mb_metrics import ConsoleSink, Evaluation, LogInterval, Metrics, MetricsRow
from mb_metrics.sinks.console import iteration_line, step_time_line
from mb_metrics.throughput import ThroughputRates

# What CloudAI looks for, ignoring case.
CLOUDAI = re.compile(
    r"Step Time\s*:\s*([0-9]+(?:\.[0-9]+)?)\s*s.*?GPU utilization:\s*([0-9]+(?:\.[0-9]+)?)\s*(?:MODEL_)?TFLOP/s/GPU",
    re.IGNORECASE,
)


def rates(step_seconds=0.25, tflops_per_device=None, mfu=None, tokens_per_second=None):
    return ThroughputRates(
        step_seconds=step_seconds,
        tokens_per_second=tokens_per_second,
        tflops_per_device=tflops_per_device,
        tflops=tflops_per_device,
        mfu=mfu,
        peak_tflops=989.4,
    )


def interval(values, *, total_steps=500, consumed_samples=320, skipped=False, **speed):
    row = MetricsRow(step=10, time=0.0, values=values, skipped=skipped, consumed_samples=consumed_samples)
    return LogInterval(rows=(row,), total_steps=total_steps, rates=rates(**speed))


STAMP = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(0.0))


def test_the_iteration_line_with_every_piece():
    values = {
        "lm loss": 2.5,
        "z_loss": -0.5,
        "learning-rate": 3e-4,
        "batch-size": 32.0,
        "loss-scale": 4096.0,
        "grad-norm": 1.25,
        "num-zeros": 7.0,
        "params-norm": 88.0,
        "max-attention-logit": 9.5,
        "skipped-train-samples": 64.0,
        "iter-energy/gpu": 5.0,
        "power/gpu": 400.0,
    }
    assert iteration_line(interval(values, skipped=True, tflops_per_device=123.45), throughput=True) == (
        f" [{STAMP}] iteration       10/     500 | consumed samples:          320 | skipped samples:           64 |"
        " elapsed time per iteration (ms): 250.0 | throughput per GPU (TFLOP/s/GPU): 123.5 |"
        " energy per GPU (J/iter/GPU): 5.0 | power per GPU (W/GPU): 400.0 | learning rate: 3.000000E-04 |"
        " global batch size:    32 | lm loss: 2.500000E+00 | z_loss: -5.000000E-01 | loss scale: 4096.0 |"
        " grad norm: 1.250 | num zeros: 7 | params norm: 88.000 | max attention logit: 9.500 |"
        " number of skipped iterations:   1 | number of nan iterations:   0 |"
    )


def test_optional_pieces_only_when_enabled_or_known():
    line = iteration_line(
        interval({"lm loss": math.nan}, total_steps=None, consumed_samples=None, tflops_per_device=1.0)
    )
    assert line == (
        f" [{STAMP}] iteration       10 | elapsed time per iteration (ms): 250.0 | lm loss: NAN | loss scale: 1.0 |"
        " number of skipped iterations:   0 | number of nan iterations:   1 |"
    )


def test_losses_can_be_chosen():
    line = iteration_line(interval({"a": 1.0, "b": 2.0}), losses=["b"])
    assert " a: " not in line
    assert " b: 2.0" in line


@pytest.mark.parametrize(
    ("speed", "line"),
    [
        (rates(), "Step Time : 0.25s GPU utilization: 0.0MODEL_TFLOP/s/GPU"),
        (rates(math.nan, math.inf), "Step Time : 0.00s GPU utilization: 0.0MODEL_TFLOP/s/GPU"),
        (
            rates(1.0, 400.04, 0.4044, 52_000.0),
            "Step Time : 1.00s GPU utilization: 400.0MODEL_TFLOP/s/GPU"
            " | tokens per second: 52000.0 | MFU: 40.4% of 989.4 TFLOP/s",
        ),
    ],
)
def test_the_step_time_line(speed, line):
    assert step_time_line(speed) == line


@settings(deadline=None)
@given(st.floats(min_value=0), st.one_of(st.none(), st.floats(min_value=0)))
def test_cloudai_reads_the_step_time_line_whatever_the_numbers(step_seconds, tflops):
    line = step_time_line(rates(step_seconds, tflops, 0.5, 1e30))
    seconds, utilization = map(float, CLOUDAI.search(line).groups())
    assert seconds == pytest.approx(
        step_seconds if math.isfinite(step_seconds) else 0.0, rel=1e-12, abs=0.00501
    )
    assert utilization == pytest.approx(
        tflops if tflops and math.isfinite(tflops) else 0.0, rel=1e-12, abs=0.05
    )


def test_two_lines_per_interval_and_one_per_evaluation():
    stream = io.StringIO()
    with Metrics([ConsoleSink(stream)], log_interval=2) as metrics:
        for step in (1, 2, 3, 4):
            metrics.record(step, {"lm loss": 1.0})
        metrics.evaluation(4, {"lm loss": 0.0})
    heads = [line.split(" :")[0].split("] ")[-1][:9] for line in stream.getvalue().splitlines()]
    assert heads == ["iteration", "Step Time", "iteration", "Step Time", " validati"]
    assert stream.getvalue().endswith(
        " validation loss at iteration 4 | lm loss value: 0.000000E+00 | lm loss PPL: 1.000000E+00 |\n"
    )


def test_standard_output_is_the_default(capsys):
    sink = ConsoleSink()
    sink.write_evaluation(Evaluation(step=1, time=0.0, losses={"x": 1.0}, consumed_samples=None))
    sink.close()
    assert "x value: 1.0" in capsys.readouterr().out


def test_failed_saves_are_a_count_and_no_loss():
    failed = interval({"lm loss": 1.0, "checkpoint-failed-saves": 3.0})
    first = dataclasses.replace(failed.rows[0], values={"lm loss": 3.0, "checkpoint-failed-saves": 2.0})
    both = dataclasses.replace(failed, rows=(first, *failed.rows))
    assert both.mean_losses == {"lm loss": 2.0}
    assert "| failed checkpoint saves: 3 |" in iteration_line(both)


def test_evaluations_are_not_printed_where_the_loop_prints_them():
    stream = io.StringIO()
    evaluation = Evaluation(step=4, time=0.0, losses={"lm loss": 0.0}, consumed_samples=None)
    ConsoleSink(stream, evaluations=False).write_evaluation(evaluation)
    assert stream.getvalue() == ""
    ConsoleSink(stream).write_evaluation(evaluation)
    assert stream.getvalue().count("validation loss") == 1
