import dataclasses
import io
import math
import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_runs import rates

from mb_metrics import ConsoleSink, Evaluation, LogInterval, Metrics, MetricsRow
from mb_metrics.sinks.console import (
    evaluation_line,
    iteration_line,
    short_evaluation_line,
    short_line,
    step_time_line,
)

# What CloudAI looks for, ignoring case.
CLOUDAI = re.compile(
    r"Step Time\s*:\s*([0-9]+(?:\.[0-9]+)?)\s*s.*?GPU utilization:\s*([0-9]+(?:\.[0-9]+)?)\s*(?:MODEL_)?TFLOP/s/GPU",
    re.IGNORECASE,
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
        tflops if tflops and math.isfinite(tflops) else 0.0, rel=1e-12, abs=0.0501
    )


def test_two_lines_per_interval_and_one_per_evaluation():
    stream = io.StringIO()
    with Metrics([ConsoleSink(stream, format="megatron")], log_interval=2) as metrics:
        for step in (1, 2, 3, 4):
            metrics.record(step, {"lm loss": 1.0})
        metrics.evaluation(4, {"lm loss": 0.0})
    heads = [line.split(" :")[0].split("] ")[-1][:9] for line in stream.getvalue().splitlines()]
    assert heads == ["iteration", "Step Time", "iteration", "Step Time", " validati"]
    assert stream.getvalue().endswith(
        " validation loss at iteration 4 | lm loss value: 0.000000E+00 | lm loss PPL: 1.000000E+00 |\n"
    )


def test_standard_output_is_the_default(capsys):
    sink = ConsoleSink(format="megatron")
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
    ConsoleSink(stream, format="megatron", evaluations=False).write_evaluation(evaluation)
    assert stream.getvalue() == ""
    ConsoleSink(stream, format="megatron").write_evaluation(evaluation)
    assert stream.getvalue().count("validation loss") == 1


def short(values, **more):
    stream = io.StringIO()
    ConsoleSink(stream, **more).write_interval(interval(values, tokens_per_second=52_000.0, mfu=0.404))
    return stream.getvalue().removesuffix("\n")


def test_the_short_line_shows_what_was_recorded():
    values = {"train/loss": 2.5, "train/lr": 3e-4, "grad_norm": 1.25, "data/wait": 0.5, "world-size": 1.0}
    assert short(values) == (
        "step 10/500 | train/loss 2.5 | train/lr 0.0003 | 0.25 s/step | 52 k tok/s | MFU 40.4% | grad_norm 1.25"
        " | data/wait 0.5"
    )
    assert short({}) == "step 10/500 | 0.25 s/step | 52 k tok/s | MFU 40.4%"


def test_losses_and_learning_rate_of_the_short_line_can_be_chosen():
    values = {"a": 1.0, "b": 2.0, "group/c": 3.0, "rate": 4.0, "lr": 5.0}
    assert short(values, losses=["group/c"], learning_rate="rate").startswith(
        "step 10/500 | group/c 3 | rate 4 | 0.25 s/step | "
    )


def test_problems_of_an_interval_and_throughput_in_the_short_line():
    stream = io.StringIO()
    with_problems = interval({"loss": math.nan}, skipped=True, tflops_per_device=123.45)
    ConsoleSink(stream, throughput=True).write_interval(
        dataclasses.replace(with_problems, total_steps=None, seconds_left=3723.0)
    )
    assert stream.getvalue() == (
        "step 10 | loss NaN | skipped 1 | NaN or infinite 1 | 0.25 s/step |"
        " 123.5 TFLOP/s/device | 1 h 2 min left\n"
    )


@settings(deadline=None)
@given(st.dictionaries(st.text(min_size=1), st.floats()))
def test_a_short_line_has_at_most_120_columns(values):
    assert len(short_line(interval(values))) <= 120


def test_metrics_that_do_not_fit_are_counted():
    assert short({f"group/metric {index}": float(index) for index in range(20)}).endswith(" | +17 more")


def test_the_short_line_of_an_evaluation():
    stream = io.StringIO()
    ConsoleSink(stream).write_evaluation(
        Evaluation(step=4, time=0.0, losses={"loss": 0.0}, consumed_samples=None)
    )
    assert stream.getvalue() == "step 4 | loss 0 on validation data | perplexity 1\n"


def test_an_unknown_format_is_an_error():
    with pytest.raises(ValueError, match=r"unknown format 'long'.*'short' and 'megatron'"):
        ConsoleSink(format="long")


def test_the_exponential_of_an_accuracy_is_no_perplexity():
    losses = {"lm loss": 2.0, "accuracy": 0.5}
    evaluation = Evaluation(step=3, time=0.0, losses=losses, consumed_samples=None)
    assert evaluation.values == {
        "lm loss validation": 2.0,
        "lm loss validation ppl": math.exp(2),
        "accuracy validation": 0.5,
    }
    assert evaluation_line(evaluation) == (
        " validation loss at iteration 3 | lm loss value: 2.000000E+00 | lm loss PPL: 7.389056E+00 |"
        " accuracy value: 5.000000E-01 |"
    )
    assert short_evaluation_line(evaluation).count("perplexity") == 1
