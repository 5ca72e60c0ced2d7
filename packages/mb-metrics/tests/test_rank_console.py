"""Output of a run: only the logging rank prints on the console; log.txt contains everything."""

import io
import os
import sys

import pytest

pytest.importorskip("rich")

from mb_metrics.run.rank_console import RankConsole


def test_the_logging_rank_prints_and_logs(tmp_path):
    screen = io.StringIO()
    output = RankConsole(stream=screen)
    output.open_log(tmp_path / "log.txt")
    output.print("step 1 [not markup]")
    output.close()
    assert screen.getvalue() == (tmp_path / "log.txt").read_text() == "step 1 [not markup]\n"


def test_other_ranks_only_log_lines_with_their_rank(tmp_path):
    screen = io.StringIO()
    output = RankConsole(rank=2, is_logging_rank=False, stream=screen)
    output.open_log(tmp_path / "log.txt")
    output.print("a warning")
    assert screen.getvalue() == ""
    assert (tmp_path / "log.txt").read_text() == "[rank 2] a warning\n"


def broken_pipe():
    """Return a text stream of a pipe whose reader has ended."""
    read, write = os.pipe()
    os.close(read)
    return open(write, "w", buffering=1)  # noqa: PTH123  # the test closes it


def full_disk():
    return open("/dev/full", "w", buffering=1)  # noqa: PTH123


@pytest.mark.parametrize(
    ("stream", "reason"), [(broken_pipe, "broken pipe"), (full_disk, "no space left on device")]
)
def test_a_console_that_cannot_be_written_does_not_end_the_run(tmp_path, stream, reason):
    with stream() as screen:
        output = RankConsole(stream=screen)
        output.open_log(tmp_path / "log.txt")
        output.print("one")
        output.print("two")
        print("of other code", file=screen, flush=True)
        output.close()
    lines = (tmp_path / "log.txt").read_text().splitlines()
    (warning,) = (line for line in lines if line.startswith("warning: "))
    assert warning.endswith(f": {reason}; the run continues, and its output is in the log only")
    assert [line for line in lines if line != warning] == ["one", "two"]


def test_an_alert_that_cannot_be_printed_is_in_the_log(tmp_path, monkeypatch):
    with broken_pipe() as screen:
        monkeypatch.setattr(sys, "stderr", screen)
        output = RankConsole(stream=io.StringIO())
        output.open_log(tmp_path / "log.txt")
        output.alert("the folder was moved")
        output.close()
    assert "the folder was moved" in (tmp_path / "log.txt").read_text().splitlines()


def test_no_bar_in_a_pipe():
    screen = io.StringIO()
    output = RankConsole(stream=screen)
    with output.progress("tokenizing", 10) as bar:
        bar.update(5)
    assert screen.getvalue() == ""


def test_a_line_is_printed_when_it_is_complete():
    screen = io.StringIO()
    output = RankConsole(stream=screen)
    output.write("half a ")
    assert screen.getvalue() == ""
    output.write("line\nand more")
    assert screen.getvalue() == "half a line\n"
    output.close()
    assert screen.getvalue() == "half a line\nand more\n"


def test_the_log_contains_the_output_before_it_was_opened(tmp_path):
    output = RankConsole(stream=io.StringIO())
    output.print("early")
    output.open_log(tmp_path / "log.txt")
    output.log("only here")
    output.close()
    assert (tmp_path / "log.txt").read_text() == "early\nonly here\n"
