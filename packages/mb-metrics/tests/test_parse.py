"""Parsing of logs: formatted records are restored, noise is ignored, and defective lines are counted."""

import math
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_runs import rates

from mb_metrics import ConsoleSink, Metrics, names
from mb_metrics.parse.log import LogFormatError, parse_log, read_log, timed
from mb_metrics.parse.log_lines import number
from mb_metrics.recorder.record import Evaluation, LogInterval, MetricsRow
from mb_metrics.run.events import RunEvent
from mb_metrics.sinks.console import evaluation_line, iteration_line, step_time_line

NOISE = [
    "",
    "loading weights",
    "step by step",
    "iteration over files | done",
    "[rank3]: NCCL INFO step: none",
]
PREFIXES = ["", "[default0]:", "3: ", "[rank0]:[titan] ", "job/0 [default7]:\x1b[32m", "worker-1 | "]

MEGATRON = (
    " [2024-04-06 02:59:36] iteration       43/     100 | consumed samples:         5504 | elapsed time per iteration "
    "(ms): 5444.9 | throughput per GPU (TFLOP/s/GPU): 239.8 | learning rate: 8.600000E-06 | global batch size:   128 |"
    " lm loss: 1.825991E+00 | load_balancing_loss: 1.019746E+00 | loss scale: 1.0 | grad norm: 1.426 |"
    " num zeros: 0.0 | number of skipped iterations:   0 | number of nan iterations:   0 |"
)
TITAN = (
    "[titan] 2026-02-24 19:46:17,508 - root - INFO - step:  4  loss:  7.62585  grad_norm: 26.6250  "
    "memory: 66.91GiB(37.51%)  tps: 10,050  tflops: 1,314.71  mfu: 13.99%"
)


def local(text):
    return time.mktime(time.strptime(text, "%Y-%m-%d %H:%M:%S"))


def printed(template, low, high):
    """Numbers after formatting, as a log can restore them."""
    return st.floats(low, high, allow_nan=False).map(lambda value: float(template.format(value)) + 0.0)


exact = st.one_of(printed("{:.6E}", -1e6, 1e6), st.sampled_from([math.inf, -math.inf]))
steps = st.lists(st.integers(1, 99_999_999), min_size=1, max_size=5, unique=True).map(sorted)
noise = st.lists(st.sampled_from(NOISE), max_size=2)


@st.composite
def console_row(draw, step):
    values = {
        names.ITERATION_TIME: draw(printed("{:.4f}", 0.001, 1e4)),
        names.LEARNING_RATE: draw(printed("{:.6E}", 0, 1)),
        names.BATCH_SIZE: float(draw(st.integers(1, 99_999))),
        "lm loss": draw(exact),
        "z_loss": draw(exact),
        names.LOSS_SCALE: draw(printed("{:.1f}", 1, 1e9)),
        names.GRAD_NORM: draw(printed("{:.3f}", 0, 1e6)),
    }
    stamp = draw(st.integers(1_000_000_000, 2_000_000_000))
    return MetricsRow(
        step=step,
        time=float(stamp),
        values=values,
        skipped=False,
        consumed_samples=draw(st.integers(0, 10**12)),
    )


def console_lines(row):
    interval = LogInterval(rows=(row,), total_steps=10**8, rates=rates(row.values[names.ITERATION_TIME]))
    return [iteration_line(interval), step_time_line(interval.rates)]


@settings(deadline=None, max_examples=40)
@given(st.data(), steps, st.sampled_from(PREFIXES), noise)
def test_our_console_comes_back_as_the_rows_that_it_was_printed_from(data, steps, prefix, noise):
    rows = [data.draw(console_row(step)) for step in steps]
    lines = [prefix + line for row in rows for line in [*console_lines(row), *noise]]
    log = parse_log(f"{line}\n" for line in lines)
    assert log.format == "mb"
    assert [without_counters(row) for row in log.rows] == [approximately(row) for row in rows]
    assert (log.total_steps, log.cut_lines, log.malformed_lines) == (10**8, 0, 0)


def without_counters(row):
    return (
        row.step,
        row.time,
        row.consumed_samples,
        {k: v for k, v in row.values.items() if "interval/" not in k},
    )


def approximately(row):
    return row.step, row.time, row.consumed_samples, pytest.approx(dict(row.values), rel=1e-12)


@settings(deadline=None, max_examples=40)
@given(exact, st.integers(0, 10**7))
def test_our_evaluation_line_comes_back(loss, step):
    evaluation = Evaluation(
        step=step, time=0.0, losses={"lm loss": loss, "z_loss": -loss}, consumed_samples=None
    )
    log = parse_log([MEGATRON, evaluation_line(evaluation)])
    (read,) = log.evaluations
    assert (read.step, read.losses) == (step, evaluation.losses)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, len(MEGATRON)))
def test_a_cut_iteration_line_is_counted_never_misread(end):
    whole = parse_log([MEGATRON]).rows[0]
    log = parse_log([MEGATRON, MEGATRON.replace(" 43/", " 44/")[:end]], format="megatron-lm")
    cut = log.rows[1:]
    assert log.cut_lines == (1 if MEGATRON.index("|") < end and not cut else 0)
    assert all(row.values == {k: v for k, v in whole.values.items() if k in row.values} for row in cut)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, len(TITAN)))
def test_a_cut_torchtitan_line_is_counted_never_misread(end):
    log = parse_log([TITAN, TITAN.replace("step:  4", "step:  5")[:end]], format="torchtitan")
    broken = log.cut_lines + log.malformed_lines
    assert broken == (1 if TITAN.index("loss:") + 4 < end < len(TITAN) else 0)
    assert len(log.rows) == (2 if end == len(TITAN) else 1)


def test_megatron_lm():
    log = parse_log(
        ["> building model\n", MEGATRON + "Number of parameters: 7\n", MEGATRON, "[after training]\n"]
    )
    assert log.format == "megatron-lm"
    assert log.total_steps == 100
    assert log.rows == (
        MetricsRow(
            step=43,
            time=local("2024-04-06 02:59:36"),
            values={
                "iteration-time": 5.4449,
                "throughput/tflops/device": 239.8,
                "learning-rate": 8.6e-06,
                "batch-size": 128.0,
                "lm loss": 1.825991,
                "load_balancing_loss": 1.019746,
                "loss-scale": 1.0,
                "grad-norm": 1.426,
                "num-zeros": 0.0,
                "interval/skipped-steps": 0.0,
                "interval/nan-steps": 0.0,
            },
            skipped=False,
            consumed_samples=5504,
        ),
    )


def test_dialects_of_the_iteration_line():
    lines = [
        " iteration        1/       2 | elapsed time per iteration (s): 1.5 | learning rate: None | lm loss: NAN |",
        " iteration        2/       2 | elapsed time per iteration (ms): 900.0 | memory usage: 145.40GiB(50.49%) |"
        " throughput per GPU (TFLOP/s/GPU): 347.9/345.2 | lm loss: -INF | number of skipped iterations:   1 |"
        " number of nan iterations:   1 | iteration        3/       2 | lm loss: 1.0 |",
    ]
    first, second, third = parse_log(lines).rows
    assert {name: str(value) for name, value in first.values.items()} == {
        "iteration-time": "1.5",
        "lm loss": "nan",
    }
    assert second.values == {
        "iteration-time": 0.9,
        "throughput/tflops/device": 347.9,
        "lm loss": -math.inf,
        "interval/skipped-steps": 1.0,
        "interval/nan-steps": 1.0,
    }
    assert (second.skipped, third.step, third.values) == (True, 3, {"lm loss": 1.0})


def bridge_lines(step):
    return [
        f"Step Time : {step / 4:.2f}s GPU utilization: {step}.5MODEL_TFLOP/s/GPU",
        MEGATRON.replace("     43/", f"{step:7d}/").replace("throughput per GPU (TFLOP/s/GPU): 239.8 | ", ""),
    ]


def test_megatron_bridge_prints_the_step_time_before_the_iteration():
    log = parse_log([*bridge_lines(10), *bridge_lines(20)])
    assert log.format == "megatron-bridge"
    assert [(row.step, row.values["throughput/tflops/device"]) for row in log.rows] == [
        (10, 10.5),
        (20, 20.5),
    ]
    as_ours = parse_log([*bridge_lines(10), *bridge_lines(20)], format="mb")
    assert [row.values.get("throughput/tflops/device") for row in as_ours.rows] == [20.5, None]
    as_lm = parse_log([*bridge_lines(10), *bridge_lines(20)], format="megatron-lm")
    assert [row.values.get("throughput/tflops/device") for row in as_lm.rows] == [None, None]


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.tuples(printed("{:.2f}", 0, 1e4), printed("{:.1f}", 0.1, 2e3)), min_size=1, max_size=5), noise
)
def test_step_time_lines_alone_are_numbered(pairs, noise):
    lines = [
        f"step time: {seconds:.2f} s gpu utilization: {tflops:.1f} tflop/s/gpu" for seconds, tflops in pairs
    ]
    log = parse_log([*lines, *noise])
    assert log.format == "cloudai"
    read = [(row.step, *row.values.values()) for row in log.rows]
    assert read == [(number, *pair) for number, pair in enumerate(pairs, start=1)]


def test_our_step_time_line_has_more_fields():
    line = "Step Time : 0.50s GPU utilization: 0.0MODEL_TFLOP/s/GPU | tokens per second: 52.5 | MFU: 40.0% of 9 TFLOP/s"
    (row,) = parse_log([line]).rows
    assert row.values == {"iteration-time": 0.5, "throughput/tokens_per_sec": 52.5, "throughput/mfu": 0.4}


@pytest.mark.parametrize(
    ("line", "counts"),
    [
        ("Step Time : nans GPU utilization: 5.0MODEL_TFLOP/s/GPU", (0, 1)),
        ("Step Time : 0.2", (1, 0)),
        ("Step Time : 0.25s GPU utilization: 5", (1, 0)),
        (MEGATRON.replace("5444.9", "soon"), (0, 1)),
        (MEGATRON.replace("        5504", "NaN"), (0, 1)),
        (" validation loss at iteration 5 | lm loss value: 5.0", (1, 0)),
        (" validation loss at iteration 5 | lm loss value: five | lm loss PPL: 1.0 |", (0, 1)),
        (MEGATRON[:-1], (1, 0)),
    ],
    ids=range(8),
)
def test_defective_lines_are_counted(line, counts):
    log = parse_log([MEGATRON.replace(" 43/", " 42/"), line, MEGATRON], format="mb")
    assert (log.cut_lines, log.malformed_lines) == counts
    assert [row.step for row in log.rows] == [42, 43]


def titan_line_of(row):
    v = row.values
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row.time))
    return (
        f"[rank0]:[titan] {stamp},250 - root - INFO - \x1b[31mstep: {row.step:2}  \x1b[32mloss: {v['loss']:8.5f}  "
        f"\x1b[38;2;180;60;0mgrad_norm: {v['grad-norm']:7.4f}  \x1b[38;2;54;234;195mmemory: "
        f"{v['memory/max-reserved-gib']:5.2f}GiB({v['memory/max-reserved-percent']:.2f}%)  "
        f"\x1b[34mtps: {round(v['throughput/device/tokens_per_sec']):,}  "
        f"\x1b[36mtflops: {v['throughput/tflops/device']:,.2f}  \x1b[35mmfu: {100 * v['throughput/mfu']:.2f}%\x1b[39m"
    )


@st.composite
def titan_row(draw, step):
    values = {
        "loss": draw(printed("{:.5f}", -100, 100)),
        "grad-norm": draw(printed("{:.4f}", 0, 1e4)),
        "memory/max-reserved-gib": draw(printed("{:.2f}", 0, 200)),
        "memory/max-reserved-percent": draw(printed("{:.2f}", 0, 100)),
        "throughput/device/tokens_per_sec": float(draw(st.integers(0, 10**7))),
        "throughput/tflops/device": draw(printed("{:.2f}", 0, 5e3)),
        "throughput/mfu": draw(printed("{:.4f}", 0, 1)),
    }
    seconds = draw(st.integers(1_000_000_000, 2_000_000_000))
    return MetricsRow(step=step, time=seconds + 0.25, values=values, skipped=False, consumed_samples=None)


@settings(deadline=None, max_examples=40)
@given(st.data(), steps, noise)
def test_torchtitan_comes_back_once_whatever_number_of_ranks_print(data, steps, noise):
    rows = [data.draw(titan_row(step)) for step in steps]
    log = parse_log([line for row in rows for line in [titan_line_of(row), titan_line_of(row), *noise]])
    assert log.format == "torchtitan"
    assert [(row.step, row.time) for row in log.rows] == [(row.step, row.time) for row in rows]
    assert [dict(row.values) for row in log.rows] == [pytest.approx(dict(row.values)) for row in rows]


def test_torchtitan_evaluations_saves_and_older_lines():
    lines = [
        "[titan] 2025-06-16 22:30:50,322 - root - INFO - step: 200  loss:  nan  memory: 49.66GiB(52.28%)  tps: 5,856"
        "  mfu: 34.29%",
        "[titan] 2025-06-16 22:30:51,000 - root - INFO - validate step: 200  loss:  6.1384  memory: 9.66GiB(2.28%)"
        "  tps: 5,856",
        "[titan] 2025-06-16 22:30:52,000 - root - INFO - Finished saving the checkpoint in 1.25 seconds.",
        "[titan] step: 201  loss:  1.0  memory: 49.66GiB(52.28%)  tps: 5,856  tflops: 1.00  mfu: N/A",
        "[titan] step: 202  loss:  1.0  grad_norm: big  memory: 49.66GiB(52.28%)  tps: 5,856  tflops: 1.00  mfu: 3.0%",
    ]
    log = parse_log(lines)
    assert [row.step for row in log.rows] == [200, 201]
    assert math.isnan(log.rows[0].values["loss"])
    assert [(e.step, e.losses) for e in log.evaluations] == [(200, {"loss": 6.1384})]
    assert log.events == (RunEvent(kind="save", time=local("2025-06-16 22:30:52"), step=200, seconds=1.25),)
    assert (log.cut_lines, log.malformed_lines) == (0, 1)


def test_evaluations_and_checkpoints_of_megatron():
    lines = [
        MEGATRON,
        " validation loss at iteration 43 on validation set | lm loss value: 2.0E+00 | lm loss PPL: 7.3E+00 |",
        " validation loss at iteration 43 on test set | lm loss value: 3.0E+00 | lm loss PPL: 7.3E+00 |",
        "[2024-04-06 03:00:00]   successfully saved checkpoint from iteration      43 to /c [ t 1/2, p 1/1 ]",
        "  scheduled an async checkpoint save at iteration      50 to /c",
        "  successfully loaded checkpoint from /c [ t 1/1, p 1/1 ] at iteration 43",
        "resumed from /c/iter_0000043 at step 43",
        " validation loss at the end of training for val data | lm loss value: 1.0E+00 | lm loss PPL: 2.7E+00 |",
    ]
    log = parse_log(lines)
    assert [(e.step, e.losses["lm loss"]) for e in log.evaluations] == [(43, 2.0), (43, 1.0)]
    assert [(e.kind, e.step) for e in log.events] == [
        ("save", 43),
        ("save", 50),
        ("resume", 43),
        ("resume", 43),
    ]
    assert log.events[0].time == local("2024-04-06 03:00:00")


def test_a_log_of_metrics_reads_back_what_was_recorded(tmp_path):
    path = tmp_path / "log.txt"
    with (
        path.open("w") as stream,
        Metrics([ConsoleSink(stream, format="megatron")], log_interval=2, total_steps=6) as metrics,
    ):
        for step in range(1, 7):
            metrics.record(step, {"lm loss": 6.0 - step, "learning-rate": 0.5}, samples=4, tokens=8)
        metrics.evaluation(6, {"lm loss": 0.25})
    log = read_log(path)
    assert [(row.step, row.values["lm loss"], row.consumed_samples) for row in log.rows] == [
        (2, 4.5, 8),
        (4, 2.5, 16),
        (6, 0.5, 24),
    ]
    assert (log.format, log.total_steps, log.evaluations[0].losses) == ("mb", 6, {"lm loss": 0.25})


def test_a_progress_bar_and_bytes_that_are_no_text_do_no_harm(tmp_path):
    path = tmp_path / "log.txt"
    path.write_bytes(b"10%|#  |\r20%|## |\r" + MEGATRON.encode() + b"\r\n\xff\xfe\n")
    assert [row.step for row in read_log(path).rows] == [43]


def test_missing_times_of_a_log_come_from_step_times():
    lines = [f"Step Time : {seconds:.2f}s GPU utilization: 1.0TFLOP/s/GPU" for seconds in (1, 2, 3)]
    assert [row.time for row in timed(parse_log(lines).rows)] == [1.0, 3.0, 6.0]
    rows = parse_log([MEGATRON]).rows
    assert tuple(timed(rows)) == rows


def test_a_log_of_nothing_that_is_known(tmp_path):
    path = tmp_path / "log.txt"
    path.write_text("epoch 1 loss 3\n")
    with pytest.raises(LogFormatError, match=r"log\.txt: no line of 1 is an iteration line"):
        read_log(path)
    with pytest.raises(LogFormatError, match="no line could be parsed as a step in the format torchtitan"):
        parse_log([MEGATRON], format="torchtitan")
    with pytest.raises(ValueError, match=r"unknown format 'nemo'\. Choose one of mb, megatron-lm"):
        parse_log([MEGATRON], format="nemo")
    with pytest.raises(FileNotFoundError):
        read_log(tmp_path / "missing.txt")


def test_a_stamp_that_is_no_date_is_no_time():
    assert math.isnan(parse_log([MEGATRON.replace("2024-04-06", "2024-99-06")]).rows[0].time)


def test_a_number_of_thousands_of_digits_is_no_iteration(tmp_path):
    log = tmp_path / "log.txt"
    line = " iteration %s/ 10 | consumed samples: 8 | lm loss: 1.0 | number of nan iterations: 0 |\n"
    log.write_text(line % ("9" * 100_000) + line % "1")
    (row,) = read_log(log).rows
    assert row.step == 1


def test_a_comma_separates_thousands_only():
    assert [number(text) for text in ("1,234,567.5", "-1,234", "2e-3")] == [1234567.5, -1234.0, 0.002]
    assert [number(text) for text in ("3,14", "1,2345", "12,34,56", "0,000123", ",5")] == [None] * 5
