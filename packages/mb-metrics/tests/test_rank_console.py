"""Output of a run: only the logging rank prints on the console; log.txt contains everything."""

import io

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
