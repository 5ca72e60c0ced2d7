"""Console lines for people: aligned, within the width of the terminal, with Megatron's lines in the log only."""

import io
import math
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_runs import rates

from mb_metrics import Evaluation, LoggerConfig, LogInterval, MetricsRow, build_sinks
from mb_metrics.report.formatting import clock_span, compact
from mb_metrics.sinks.terminal import TerminalSink


@dataclass
class Terminal:
    columns: int = 80
    lines: list = field(default_factory=list)
    styles: list = field(default_factory=list)

    def print_styled(self, pieces):
        self.lines.append("".join(text for text, _ in pieces))
        self.styles += [style for _, style in pieces]


def interval(step, values, *, skipped=False, mfu=None, left=65.0, tflops=None):
    speed = rates(tokens_per_second=52_000.0, tflops_per_device=tflops, mfu=mfu)
    row = MetricsRow(step=step, time=0.0, values=values, skipped=skipped, consumed_samples=None)
    return LogInterval(rows=(row,), total_steps=500, rates=speed, seconds_left=left)


USUAL = {"lm loss": 2.5, "learning-rate": 3e-4, "grad-norm": 1.25, "loss-scale": 1.0}


def test_lines_of_a_run_are_aligned_and_have_what_people_look_at():
    terminal = Terminal(columns=120)
    sink = TerminalSink(terminal)
    sink.write_interval(interval(10, USUAL | {"memory/mem-max-allocated-gigabytes": 61.25}, mfu=0.404))
    sink.write_interval(interval(100, USUAL | {"lm loss": 2.25}))
    sink.write_evaluation(Evaluation(step=100, time=0.0, losses={"lm loss": 0.0}, consumed_samples=None))
    usual = "lr 3.00e-04  grad  1.250    52k tok/s  ETA 1m05s"
    assert terminal.lines == [
        f"step  10/500  loss 2.5000  {usual}  MFU 40.4%  mem  61.2 GB  250ms/step",
        f"step 100/500  loss 2.2500  {usual}  MFU     -  mem     - GB  250ms/step",
        "step 100      validation loss 0.0000  perplexity 1",
    ]


def test_what_does_not_fit_is_left_out_and_problems_stay():
    terminal = Terminal(columns=50)
    TerminalSink(terminal).write_interval(interval(10, USUAL | {"lm loss": math.nan}, skipped=True))
    assert terminal.lines == ["step  10/500  loss nan  1 skipped  1 NaN"]
    assert terminal.styles.count("problem") == 3


@settings(deadline=None)
@given(st.dictionaries(st.text(min_size=1), st.floats()), st.integers(40, 200))
def test_a_line_is_never_wider_than_the_terminal(values, columns):
    terminal = Terminal(columns=columns)
    TerminalSink(terminal, throughput=True).write_interval(interval(10, values, mfu=0.4, tflops=400.0))
    assert len(terminal.lines[0]) <= columns


@pytest.mark.parametrize(("tflops", "shown"), [(0.02, False), (400.0, True)])
def test_no_throughput_that_rounds_to_zero(tflops, shown):
    terminal = Terminal(columns=200)
    TerminalSink(terminal, throughput=True).write_interval(interval(10, USUAL, tflops=tflops))
    assert ("TFLOP/s" in terminal.lines[0]) == shown


def test_spans_and_numbers_are_short():
    spans = [clock_span(seconds) for seconds in (0, 0.25, 4.25, 42, 185, 7800, 100 * 3600, math.nan)]
    assert spans == ["0s", "250ms", "4.2s", "42s", "3m05s", "2h10m", "4d04h", "?"]
    assert [compact(value) for value in (12_345.0, 2.3456, 1.2e-5, 0.0)] == ["12.3k", "2.346", "1.2e-05", "0"]


@pytest.mark.parametrize(
    ("style", "kinds"),
    [
        ("auto", ["ConsoleSink"]),
        ("megatron", ["ConsoleSink"]),
        ("short", ["TerminalSink", "ConsoleSink"]),
    ],
)
def test_megatrons_lines_are_in_the_log_and_on_a_console_for_programs(style, kinds, tmp_path):
    pytest.importorskip("rich")
    from mb_metrics.run.rank_console import RankConsole

    screen = io.StringIO()
    console = RankConsole(stream=screen, style=style)
    console.open_log(tmp_path / "log.txt")
    sinks = build_sinks(LoggerConfig(console=style), stream=console)
    assert [type(sink).__name__ for sink in sinks] == kinds
    for sink in sinks:
        sink.write_interval(interval(10, USUAL))
        sink.write_evaluation(Evaluation(step=10, time=0.0, losses={"lm loss": 1.0}, consumed_samples=None))
    log = (tmp_path / "log.txt").read_text()
    assert [
        log.count(text) for text in ("iteration       10/", "Step Time : 0.25s", "validation loss at")
    ] == [*(1, 1, 1)]
    assert (screen.getvalue() == log) == (style != "short")
    assert screen.getvalue().startswith("step  10/500  loss 2.5000") == (style == "short")


def test_without_a_log_the_short_lines_replace_megatrons():
    stream = io.StringIO()
    (sink,) = build_sinks(LoggerConfig(console="short"), stream=stream)
    sink.write_interval(interval(10, USUAL))
    assert stream.getvalue().startswith("step 10/500 | lm loss 2.5 |")
