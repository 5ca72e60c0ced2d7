"""Text display of a run: once, or refreshed until the run is finished."""

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_runs import BEGIN, event, row, steady, write_run

from mb_metrics.report.run_reader import RunReader, read_run
from mb_metrics.report.series import Series
from mb_metrics.report.text_plot import text_plot
from mb_metrics.report.watch import watch_frames, watch_text


def test_the_text_of_a_run(tmp_path):
    rows = [*steady(1, 9, 1, lm_loss=4.0, **{"learning-rate": 0.5}), row(9, 11, lm_loss_validation=3.0)]
    events = [event("start", 0, step=0), event("save", 12, step=9, seconds=1.0)]
    folder = write_run(tmp_path / "tiny", rows, events, run_config__yaml="  train_iters: 18\n")
    assert watch_text(read_run(folder), now=BEGIN + 13, width=70, height=10, plain=True).splitlines() == [
        "tiny: running",
        f"step 9 of 18  {'#' * 20}{'.' * 19}  50.0 %  ETA 9 s",
        "",
        "lm loss",
        "       4",
        "         *************************************************************",
        "       4",
        "         1                                                           9",
        "",
        "loss 4                 mean of 9 4            validation 3",
        "best 3 at 9",
        "step 1 s",
        "lr 0.5",
        "training 75.0 %        evaluating 16.7 %      saving 8.3 %",
        "",
        event_line(0, "start       step 0"),
        event_line(12, "save        step 9        1 s"),
    ]


def event_line(at, words):
    return f"{time.strftime('%H:%M:%S', time.localtime(BEGIN + at))}  {words}"


def test_a_run_that_has_nothing_yet_and_one_that_went_wrong(tmp_path):
    empty = read_run(write_run(tmp_path / "a", [], run_config__yaml="x: 1\n"))
    assert watch_text(empty, now=BEGIN).splitlines() == ["a: nothing recorded yet", "step 0"]
    bad = read_run(write_run(tmp_path / "b", [row(1, 0, lm_loss="NaN", skipped=True)]))
    text = watch_text(bad, now=BEGIN + 999)
    assert "loss NaN\n" in text
    assert "skipped 1           NaN 1" in text
    assert "! step 1: lm loss is NaN or infinite" in text


def test_the_colours_of_a_run_on_a_terminal(tmp_path):
    pytest.importorskip("rich")
    from rich.text import Text

    from mb_metrics.cli.watch import WatchColours

    run = read_run(write_run(tmp_path / "b", [row(1, 0, lm_loss="NaN"), row(2, 1, lm_loss=1.0)]))
    text = Text(watch_text(run, now=BEGIN))
    WatchColours().highlight(text)
    styles = {(text.plain[span.start : span.end], str(span.style)) for span in text.spans}
    assert {
        ("b", "watch.name"),
        ("not closed (killed or still running)", "watch.bad"),
        ("loss", "watch.quiet"),
    } <= styles
    assert ("! step 1: lm loss is NaN or infinite", "watch.bad") in styles


class Writer:
    """A trainer that continues while the display waits."""

    def __init__(self, folder, writings):
        self.folder, self.writings, self.now, self.slept = folder, list(writings), BEGIN, []

    def clock(self):
        return self.now

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now += seconds
        name, lines = self.writings.pop(0)
        with (self.folder / name).open("a") as file:
            file.write("".join(json.dumps(line) + "\n" for line in lines))


def test_frames_follow_a_run_until_it_stops(tmp_path):
    write_run(tmp_path, steady(1, 2, 0), [event("start", 0, step=0)], run_config__yaml="  train_iters: 4\n")
    writer = Writer(
        tmp_path,
        [("metrics.jsonl", steady(3, 4, 2)), ("events.jsonl", [event("stop", 4, step=4, reason="signal")])],
    )
    frames = watch_frames(
        RunReader(tmp_path), seconds=2, size=lambda: (60, 20), clock=writer.clock, sleep=writer.sleep
    )
    texts = [frame.splitlines() for frame in frames]
    assert [lines[0].split(": ")[1] for lines in texts] == ["running", "running", "stopped (signal)"]
    assert [lines[1].split(" of")[0] for lines in texts] == ["step 2", "step 4", "step 4"]
    assert writer.slept == [2, 2]
    assert all(len(line) <= 60 for lines in texts for line in lines)


def test_slow_reads_extend_the_interval(tmp_path):
    write_run(tmp_path, steady(1, 2, 0))
    writer = Writer(tmp_path, [("events.jsonl", [event("stop", 4, reason="failed")])])
    times = iter([BEGIN, BEGIN + 3, BEGIN + 20, BEGIN + 23])
    frames = watch_frames(
        RunReader(tmp_path), seconds=1, size=lambda: (80, 20), clock=lambda: next(times), sleep=writer.sleep
    )
    assert len(list(frames)) == 2
    assert writer.slept == [12]


def test_a_falling_line_in_braille_and_in_ascii():
    blank = chr(0x2800)
    assert text_plot(Series.of(enumerate([3, 2, 1, 0], start=1)), width=20, height=3) == [
        "       3 ⠉⠒⠒⠤⢄⡀",
        f"       0 {5 * blank}⠈⠑⠒⠤⠤⣀",
        "         1         4",
    ]
    assert text_plot(Series.of(enumerate([2, 1, 0], start=1)), width=20, height=4, plain=True) == [
        "       2 ***",
        "            *****",
        "       0         ***",
        "         1         3",
    ]


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), max_size=50),
    st.integers(1, 90),
    st.integers(1, 20),
    st.booleans(),
)
def test_a_plot_fits_its_width_and_height(values, width, height, plain):
    lines = text_plot(Series.of(enumerate(values, start=1)), width=width, height=height, plain=plain)
    assert not lines or len(lines) == max(height, 3)
    assert all(len(line) <= max(width, 20) for line in lines)


@pytest.mark.parametrize("plain", [True, False])
def test_plain_text_is_ascii(tmp_path, plain):
    run = read_run(write_run(tmp_path, [row(1, 0, lm_loss="Infinity"), row(2, 1, lm_loss=1.0)]))
    assert watch_text(run, now=BEGIN, plain=plain).isascii() == plain
