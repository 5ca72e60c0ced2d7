import re
import sys
import time
from types import SimpleNamespace

import pytest

from mb_resilience import HangReporter
from mb_resilience.hangs.rank_status_store import RankStatusStore, StatusRecord
from mb_resilience.hangs.report import RankStatus
from mb_resilience.hangs.reporter import stack_file_name


class Shared:
    """Store within one process."""

    def __init__(self):
        self.values = {}

    def set(self, key, value):
        self.values[key] = value.encode()

    def get(self, key):
        return self.values[key]

    def check(self, keys):
        return all(key in self.values for key in keys)

    def multi_get(self, keys):
        return [self.values[key] for key in keys]

    def compare_set(self, key, expected, desired):
        if self.values.setdefault(key, desired.encode() if not expected else b"") == expected.encode():
            self.values[key] = desired.encode()
        return self.values[key]


class UnresponsiveStore(Shared):
    """Store that does not respond."""

    def set(self, key, value):
        raise RuntimeError("Connection reset by peer\nstack of C++")

    def check(self, keys):
        raise RuntimeError("Connection reset by peer\nstack of C++")

    def compare_set(self, key, expected, desired):
        raise RuntimeError("Connection reset by peer\nstack of C++")


def wait_until(holds, seconds=60):
    """Wait until a condition holds, without testing how long it takes."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_hanging_rank_is_reported_with_its_stack_and_when_it_resumes(tmp_path):
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
    assert stacks == f"  full stacks: {tmp_path}/hang_stack_*.txt"
    assert logged[1].startswith("rank 0 resumed after ")
    assert (tmp_path / "hang_report.txt").read_text().startswith(f"{logged[0]}\n{logged[1]}\n")
    assert "in wait_until" in (tmp_path / stack_file_name()).read_text()


def test_each_position_is_reported_once(tmp_path):
    logged = []
    with HangReporter(seconds=0.1, folder=tmp_path, log=logged.append) as progress:
        wait_until(lambda: logged)
        time.sleep(0.5)  # several times the reporting interval
        assert [text.splitlines()[1].partition(",")[0] for text in logged] == ["  rank 0: setup"]
        progress.note("step", 1)
        wait_until(lambda: logged[2:])
    assert logged[2].splitlines()[1].startswith("  rank 0: step 1, at ")


def test_section_restores_the_interrupted_one():
    progress = HangReporter(seconds=60)
    progress.note("step", 7)
    with progress.section("checkpointing"):
        assert progress._position == ("checkpointing", 7)
    assert progress._position == ("step", 7)


def fire(reporter, event, *, step, work=None):
    """Fire an event as a loop does, and return the position of the rank."""
    state = SimpleNamespace(train_state=SimpleNamespace(step=step))
    getattr(reporter, event)(SimpleNamespace(state=state, checkpoint_work=work))
    return reporter._position


def test_events_of_a_loop_are_positions():
    reporter = HangReporter(seconds=60)
    assert fire(reporter, "on_train_step_start", step=6) == ("step", 7)
    assert fire(reporter, "on_train_step_end", step=7) == ("after step", 7)
    assert fire(reporter, "on_train_step_skipped", step=8) == ("after step", 8)
    assert fire(reporter, "on_eval_step_start", step=7) == ("validation after step", 7)
    assert fire(reporter, "on_eval_end", step=7) == ("after step", 7)
    assert fire(reporter, "on_test_step_start", step=7) == ("test after step", 7)
    assert fire(reporter, "on_checkpoint_start", step=7, work="save") == ("checkpoint after step", 7)
    assert fire(reporter, "on_checkpoint_end", step=7) == ("test after step", 7)
    position = fire(reporter, "on_checkpoint_start", step=7, work="finalize")
    assert position == ("waiting for background saves after step", 7)
    assert fire(reporter, "on_checkpoint_end", step=7) == ("test after step", 7)


def test_the_first_step_may_take_longer():
    reporter = HangReporter(seconds=60, seconds_after_first_step=5)
    fire(reporter, "on_train_step_start", step=0)
    assert reporter.seconds == 60
    fire(reporter, "on_train_step_end", step=1)
    assert reporter.seconds == 5


class Ranks:
    """Reporters of several ranks, without threads: each `beat` is a heartbeat of each of them, one second later."""

    def __init__(self, world_size, *, folder, reporting_rank=0, store=None):
        self.now, self.logged, self.store = 0.0, [], Shared() if store is None else store
        self.reporters = [
            HangReporter(
                seconds=10,
                store=self.store,
                rank=rank,
                world_size=world_size,
                reporting_rank=reporting_rank,
                folder=folder,
                log=self.logged.append,
                clock=lambda: self.now,
            )
            for rank in range(world_size)
        ]

    def note(self, *steps):
        for reporter, step in zip(self.reporters, steps, strict=True):
            reporter.note("step", step)

    def beat(self, times=1, *, silent=()):
        for _ in range(times):
            self.now += 1
            for rank, reporter in enumerate(self.reporters):
                if rank not in silent:
                    reporter._beat()


@pytest.mark.parametrize("reporting_rank", [0, 1, 2])
def test_one_of_several_ranks_reports_the_rank_that_is_behind(reporting_rank, tmp_path):
    ranks = Ranks(3, folder=tmp_path, reporting_rank=reporting_rank)
    ranks.note(9, 8, 9)
    ranks.beat(60)
    (report,) = ranks.logged
    assert report.startswith(
        "no progress for 13 s: check rank 1, which is in step 8 while others are in step 9"
    )
    assert "sends no heartbeats" not in report
    assert [reporter._has_reported for reporter in ranks.reporters] == [
        rank == reporting_rank for rank in range(3)
    ]
    (stacks,) = tmp_path.glob("hang_stack_*.txt")  # one file for all ranks of a machine
    ranks_of_stacks = re.findall(r"^rank (\d), process \d+, ", stacks.read_text(), re.MULTILINE)
    assert sorted(ranks_of_stacks) == ["0", "1", "2"]


def test_each_hang_of_several_ranks_is_reported_and_its_end(tmp_path):
    ranks = Ranks(3, folder=tmp_path)
    for step in (1, 2):
        ranks.note(step, step, step)
        ranks.beat(60)
    assert [text.partition(" for ")[0].partition(" after ")[0] for text in ranks.logged] == [
        "no progress",
        "rank 0 resumed",
        "no progress",
    ]


def test_another_rank_reports_if_the_reporting_rank_does_not_respond(tmp_path):
    ranks = Ranks(3, folder=tmp_path)
    ranks.beat(5)
    ranks.beat(60, silent=[0])
    (report,) = ranks.logged
    assert "check rank 0, which sends no heartbeats" in report


def test_another_rank_takes_over_a_report_whose_rank_stops_in_the_meantime(tmp_path):
    ranks = Ranks(4, folder=tmp_path)
    ranks.beat(12)  # rank 0 has claimed the report, and read the statuses once
    assert (ranks.store.values["mb_resilience/hang/0/reporter"], ranks.logged) == (b"0 claimed", [])
    ranks.beat(60, silent=[0])
    (report,) = ranks.logged
    assert "check rank 0, which sends no heartbeats" in report


def test_a_report_of_a_rank_that_has_left_is_not_the_report_of_a_later_hang(tmp_path):
    ranks = Ranks(2, folder=tmp_path)
    ranks.beat(30)
    ranks.reporters[1].note("step", 1)
    ranks.beat(60, silent=[0])
    first, second = ranks.logged
    assert "sends no heartbeats" not in first
    assert "check rank 0, which sends no heartbeats" in second


def test_the_claim_of_a_rank_that_exits_is_taken_at_once(tmp_path):
    ranks = Ranks(2, folder=tmp_path)
    ranks.beat(11)
    leaving = ranks.reporters[0]
    leaving._publish_status(leaving._status(0.0, exit_reason="KeyError"))
    ranks.beat(7, silent=[0])
    (report,) = ranks.logged
    assert "check rank 0, which left the run (KeyError)" in report


def test_rank_that_resumed_meanwhile_reports_nothing(tmp_path):
    ranks = Ranks(2, folder=tmp_path)
    ranks.beat(12)
    ranks.note(1, 1)
    ranks.beat(5)
    assert ranks.logged == []
    assert ranks.store.values["mb_resilience/hang/0/reporter"] == b"0 released"


def test_a_rank_that_makes_progress_while_it_reads_reports_nothing(tmp_path):
    class ResumingStore(Shared):
        def multi_get(self, keys):
            if len(keys) > 1:
                ranks.note(1, 1)
            return super().multi_get(keys)

    ranks = Ranks(2, folder=tmp_path, store=ResumingStore())
    ranks.beat(19)
    assert ranks.logged == []


def test_many_ranks_are_read_in_requests_of_1000_keys():
    class Requests(Shared):
        sizes = ()

        def multi_get(self, keys):
            self.sizes += (len(keys),)
            return super().multi_get(keys)

    store = Requests()
    statuses = RankStatusStore(store, rank=0, world_size=2500, attempt="0")
    missing = {7, 1203, 1204}
    status = RankStatus(section="step", step=3)
    for rank in set(range(2500)) - missing:
        RankStatusStore(store, rank=rank, world_size=2500, attempt="0").write(
            StatusRecord(heartbeat=1, heartbeat_seconds=1.0, status=status)
        )
    found = statuses.read()
    assert set(range(2500)) - set(found) == missing
    assert {record.status for record in found.values()} == {status}
    assert store.sizes == (999, 998, 500)


def test_rank_that_never_reported_is_a_suspect(tmp_path):
    logged = []
    reporter = HangReporter(
        seconds=0.5, store=Shared(), rank=1, world_size=2, log=logged.append, folder=tmp_path
    )
    with reporter:
        wait_until(lambda: logged)
    assert logged[0].splitlines()[0].partition(": ")[2].startswith("check rank 0, which sends no heartbeats")


def test_rank_that_exited_with_an_error_is_a_suspect(tmp_path):
    logged, store = [], Shared()
    with pytest.raises(KeyError), HangReporter(seconds=0.5, store=store, rank=1, world_size=2):
        raise KeyError("planted")
    with HangReporter(seconds=0.5, store=store, rank=0, world_size=2, log=logged.append, folder=tmp_path):
        wait_until(lambda: logged)
    assert "check rank 1, which left the run (KeyError)" in logged[0]


def test_unresponsive_store_is_reported_and_the_rank_reports_itself(tmp_path):
    logged = []
    reporter = HangReporter(
        seconds=0.5, store=UnresponsiveStore(), rank=1, world_size=2, log=logged.append, folder=tmp_path
    )
    with reporter:
        wait_until(lambda: logged[1:])
    assert logged[0] == (
        "rank 1: the store does not respond, so other ranks are not visible: Connection reset by peer"
    )
    assert "  rank 1: setup, at " in logged[1]


def test_files_that_cannot_be_written_are_reported(tmp_path):
    logged = []
    for name in ("hang_report.txt", stack_file_name()):
        (tmp_path / name).mkdir()
    with HangReporter(seconds=0.2, folder=tmp_path, log=logged.append):
        wait_until(lambda: logged[2:])
    assert logged[0].startswith("rank 0: cannot write stacks: ")
    assert logged[1].startswith("no progress for ")
    assert logged[2].startswith("rank 0: cannot write hang_report.txt: ")


def test_stacks_go_to_stderr_without_a_folder(tmp_path, capfd):
    logged = []

    def log(text):
        print(text, file=sys.stderr)
        logged.append(text)

    written = []

    def has_stack():
        written.append(capfd.readouterr().err)
        return "in wait_until" in "".join(written)

    with HangReporter(seconds=0.2, folder=tmp_path / "later", log=log):
        wait_until(has_stack)
    assert "full stacks" not in logged[0]
    report, _, stacks = "".join(written).partition("most recent call first")
    assert report.startswith("no progress for ")  # the report precedes the stacks
    assert "in wait_until" in stacks


def test_rank_with_a_longer_heartbeat_interval_is_not_unresponsive(tmp_path):
    logged, store = [], Shared()
    slow = HangReporter(seconds=8, store=store, rank=1, world_size=2)  # a beat every 0.8 s
    fast = HangReporter(seconds=0.3, store=store, world_size=2, log=logged.append, folder=tmp_path)
    slow._publish_status(slow._status(0.0))
    with slow, fast:
        wait_until(lambda: logged)
    assert "sends no heartbeats" not in logged[0]
    assert "  rank 1: setup" in logged[0] or "  ranks 0-1: setup" in logged[0]


def test_rank_outside_of_the_world_size_is_rejected():
    with pytest.raises(
        ValueError, match="rank=1, world_size=1: the rank must be in the range of the world size"
    ):
        HangReporter(seconds=1, rank=1)


@pytest.mark.parametrize("seconds", [0, -1.5, float("nan")])
def test_time_that_is_not_positive_is_rejected(seconds):
    with pytest.raises(ValueError, match="Pass a positive time"):
        HangReporter(seconds=seconds)
    with pytest.raises(ValueError, match="Pass a positive time"):
        HangReporter(seconds=60, seconds_after_first_step=seconds)
    reporter = HangReporter(seconds=60)
    with pytest.raises(ValueError, match="Pass a positive time"):
        reporter.seconds = seconds
    assert reporter.seconds == 60
