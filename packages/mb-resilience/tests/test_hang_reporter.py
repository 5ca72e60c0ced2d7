import time

import pytest

from mb_resilience import HangReporter


class Shared:
    """A store within one process."""

    def __init__(self):
        self.values = {}

    def set(self, key, value):
        self.values[key] = value.encode()

    def get(self, key):
        return self.values[key]

    def check(self, keys):
        return all(key in self.values for key in keys)


class Lost(Shared):
    """A store that does not answer."""

    def set(self, key, value):
        raise RuntimeError("Connection reset by peer\nstack of C++")

    def check(self, keys):
        raise RuntimeError("Connection reset by peer\nstack of C++")


def wait_until(holds, seconds=60):
    """Wait until something holds; not how long it takes is tested, but that it comes."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_rank_that_stays_is_reported_with_its_stack_and_that_it_went_on(tmp_path):
    logged = []
    progress = HangReporter(seconds=0.2, folder=tmp_path, log=logged.append)
    progress.note("step", 3)
    with progress:
        wait_until(lambda: logged)
        progress.note("step", 4)
        wait_until(lambda: logged[1:])
    head, line, stacks = logged[0].splitlines()
    assert head.startswith("no progress for ")
    assert line.startswith("  rank 0: step 3, at ")
    assert "test_hang_reporter.py" in line
    assert "wait_until" in line
    assert stacks == f"  whole stacks: {tmp_path}/hang_stack_*.txt"
    assert logged[1].startswith("rank 0 went on after ")
    assert (tmp_path / "hang_report.txt").read_text().startswith(f"{logged[0]}\n{logged[1]}\n")
    assert "in wait_until" in (tmp_path / "hang_stack_0.txt").read_text()


def test_it_is_reported_once_for_each_place(tmp_path):
    logged = []
    with HangReporter(seconds=0.1, folder=tmp_path, log=logged.append) as progress:
        wait_until(lambda: logged)
        time.sleep(0.5)  # several times as long
        assert [text.splitlines()[1].partition(",")[0] for text in logged] == ["  rank 0: setup"]
        progress.note("step", 1)
        wait_until(lambda: logged[2:])
    assert logged[2].splitlines()[1].startswith("  rank 0: step 1, at ")


def test_a_section_gives_way_to_the_one_that_it_interrupts():
    progress = HangReporter(seconds=60)
    progress.note("step", 7)
    with progress.section("checkpointing"):
        assert progress._position == ("checkpointing", 7)
    assert progress._position == ("step", 7)


class Lively(Shared):
    """A store in which each look finds that all ranks have told something since the last."""

    ranks = ()

    def check(self, keys):
        for rank in self.ranks:
            rank._publish_status(rank._status(9.0))
        return super().check(keys)


@pytest.mark.parametrize("reporting_rank", [0, 1, 2])
def test_of_several_ranks_one_reports_and_names_the_one_that_is_behind(reporting_rank, tmp_path):
    logged, store = [], Lively()
    store.ranks = [
        HangReporter(
            seconds=0.1,
            store=store,
            rank=rank,
            world_size=3,
            reporting_rank=reporting_rank,
            folder=tmp_path,
            log=logged.append,
        )
        for rank in range(3)
    ]
    for reporter, step in zip(store.ranks, (9, 8, 9), strict=True):
        reporter.note("step", step)
    reported = [reporter._report(9.0, seen=1) for reporter in store.ranks]
    assert reported == [rank == reporting_rank for rank in range(3)]
    assert "look at rank 1, which is in step 8 while others are in step 9" in logged[0]
    assert len(list(tmp_path.glob("hang_stack_*.txt"))) == 3


def test_a_rank_that_went_on_meanwhile_reports_nothing(tmp_path):
    logged = []
    reporter = HangReporter(seconds=0.1, folder=tmp_path, log=logged.append)
    reporter.note("step", 1)
    assert (reporter._report(9.0, seen=0), logged) == (False, [])


def test_one_that_never_came_is_reported_by_one_that_did(tmp_path):
    logged = []
    reporter = HangReporter(
        seconds=0.5, store=Shared(), rank=1, world_size=2, log=logged.append, folder=tmp_path
    )
    with reporter:
        wait_until(lambda: logged)
    assert logged[0].splitlines()[0].partition(": ")[2].startswith("look at rank 0, which told nothing more")


def test_one_that_left_with_an_error_is_named(tmp_path):
    logged, store = [], Shared()
    with pytest.raises(KeyError), HangReporter(seconds=0.5, store=store, rank=1, world_size=2):
        raise KeyError("planted")
    with HangReporter(seconds=0.5, store=store, rank=0, world_size=2, log=logged.append, folder=tmp_path):
        wait_until(lambda: logged)
    assert "look at rank 1, which left the run (KeyError)" in logged[0]


def test_a_store_that_does_not_answer_is_said_and_the_rank_reports_on_itself(tmp_path):
    logged = []
    reporter = HangReporter(
        seconds=0.5, store=Lost(), rank=1, world_size=2, log=logged.append, folder=tmp_path
    )
    with reporter:
        wait_until(lambda: logged[1:])
    assert logged[0] == (
        "rank 1: the store does not answer, so other ranks are not seen: Connection reset by peer"
    )
    assert "  rank 1: setup, at " in logged[1]


def test_files_that_cannot_be_written_are_said(tmp_path):
    logged = []
    for name in ("hang_report.txt", "hang_stack_0.txt"):
        (tmp_path / name).mkdir()
    with HangReporter(seconds=0.2, folder=tmp_path, log=logged.append):
        wait_until(lambda: logged[2:])
    assert logged[0].startswith("rank 0: stacks are not written: ")
    assert logged[1].startswith("no progress for ")
    assert logged[2].startswith("rank 0: hang_report.txt is not written: ")


def test_while_there_is_no_folder_stacks_go_to_stderr(tmp_path, capfd):
    logged = []
    with HangReporter(seconds=0.2, folder=tmp_path / "later", log=logged.append):
        wait_until(lambda: logged)
    assert "whole stacks" not in logged[0]
    assert "in wait_until" in capfd.readouterr().err


def test_a_rank_that_beats_more_slowly_is_not_taken_for_a_dead_one(tmp_path):
    logged, store = [], Shared()
    slow = HangReporter(seconds=8, store=store, rank=1, world_size=2)  # a beat every 0.8 s
    fast = HangReporter(seconds=0.3, store=store, world_size=2, log=logged.append, folder=tmp_path)
    slow._publish_status(slow._status(0.0))
    with slow, fast:
        wait_until(lambda: logged)
    assert "told nothing more" not in logged[0]
    assert "  rank 1: setup" in logged[0] or "  ranks 0-1: setup" in logged[0]


def test_a_rank_outside_of_the_world_is_refused():
    with pytest.raises(ValueError, match="rank=1, world_size=1: the rank must be one of the world"):
        HangReporter(seconds=1, rank=1)


@pytest.mark.parametrize("seconds", [0, -1.5, float("nan")])
def test_a_report_without_some_time_is_refused_at_once_and_later(seconds):
    with pytest.raises(ValueError, match="Pass a positive time"):
        HangReporter(seconds=seconds)
    reporter = HangReporter(seconds=60)
    with pytest.raises(ValueError, match="Pass a positive time"):
        reporter.seconds = seconds
    assert reporter.seconds == 60
