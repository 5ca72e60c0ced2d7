import time

from mb_resilience.hangs.report import RankStatus, find_suspects, format_ranks, format_report
from mb_resilience.hangs.reporter import newest_report

REDUCE = ("torch/distributed/distributed_c10d.py:9 all_reduce", "train.py:7 main")
READ = ("data.py:3 read", "train.py:5 main")


def status(step=17, section="step", frames=REDUCE, **rest):
    return RankStatus(section=section, step=step, seconds=61.0, frames=frames, **rest)


def suspects_of(*statuses):
    suspects = find_suspects(dict(enumerate(statuses)))
    return None if suspects is None else (suspects.ranks, suspects.reason)


def test_suspects_by_criterion():
    waiting = status()
    assert suspects_of(waiting, waiting, status(exit_reason="KeyError")) == ((2,), "left the run (KeyError)")
    unresponsive = "no heartbeats: stopped, dead, or on an unreachable machine"
    assert suspects_of(waiting, status(step=16, unresponsive=True), None) == ((1, 2), f"send {unresponsive}")
    assert suspects_of(waiting, None) == ((1,), f"sends {unresponsive}")
    assert suspects_of(waiting, status(step=16), waiting) == (
        (1,),
        "is in step 16 while others are in step 17",
    )
    assert suspects_of(waiting, waiting, status(section="checkpointing")) == ((2,), "is in another section")
    working = "is not in torch.distributed, where the others wait"
    assert suspects_of(status(frames=READ), waiting) == ((0,), working)
    assert suspects_of(status(frames=READ), status(frames=READ), waiting) == (
        (0, 1),
        "are not in torch.distributed, where the others wait",
    )
    other_line = status(frames=("torch/distributed/distributed_c10d.py:5 barrier",))
    assert suspects_of(waiting, other_line, waiting) == ((1,), "is at another line of the program")


def test_several_suspects_are_a_plural():
    behind = {0: status(step=16), 1: status(step=16), 2: status()}
    head = "no progress for 61 s: check ranks 0-1, which are in step 16 while others are in step 17"
    assert format_report(behind, seconds=61.0).splitlines()[0] == head


def test_no_suspects_without_a_criterion():
    waiting = status()
    assert suspects_of(waiting, waiting) is None
    assert suspects_of(waiting) is None
    assert suspects_of(None, None) is None
    assert suspects_of(status(section="step"), status(section="checkpointing")) is None


def test_report_groups_ranks_with_the_same_status():
    statuses = {rank: status() for rank in range(6)} | {4: status(frames=READ), 6: None}
    statuses |= {
        7: status(step=16, unresponsive=True),
        8: status(exit_reason="finished"),
        9: status(step=None, section="setup"),
    }
    assert format_report(statuses, seconds=61.4, stacks="run/hang_stack_*.txt") == (
        "no progress for 61 s: check rank 8, which left the run (finished)\n"
        "  ranks 0-3,5: step 17, at torch/distributed/distributed_c10d.py:9 all_reduce < train.py:7 main\n"
        "  rank 4: step 17, at data.py:3 read < train.py:5 main\n"
        "  rank 6: has never reported\n"
        "  rank 7: last reported: step 16, at torch/distributed/distributed_c10d.py:9 all_reduce < train.py:7 main\n"
        "  rank 8: left the run: finished\n"
        "  rank 9: setup, at torch/distributed/distributed_c10d.py:9 all_reduce < train.py:7 main\n"
        "  full stacks: run/hang_stack_*.txt"
    )
    assert format_report({0: status(frames=())}, seconds=2) == "no progress for 2 s\n  rank 0: step 17"


def test_ranks_are_formatted_as_ranges():
    assert [format_ranks(ranks) for ranks in ([], [3], [0, 1], [0, 2, 3, 4])] == ["", "3", "0-1", "0,2-4"]


def test_the_newest_report_counts_until_the_rank_resumes(tmp_path):
    file = tmp_path / "hang_report.txt"
    assert newest_report(tmp_path, since=0.0) is None
    file.write_text("no progress for 30 s: check rank 1, which is late\n  rank 0: step 3\n")
    assert newest_report(tmp_path, since=0.0) == "no progress for 30 s: check rank 1, which is late"
    assert newest_report(tmp_path, since=time.time() + 60) is None
    file.write_text(file.read_text() + "rank 0 resumed after 40 s\n")
    assert newest_report(tmp_path, since=0.0) is None
