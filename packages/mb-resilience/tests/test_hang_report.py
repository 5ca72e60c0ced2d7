from mb_resilience.hang_report import RankStatus, find_suspects, format_ranks, format_report

REDUCE = ("torch/distributed/distributed_c10d.py:9 all_reduce", "train.py:7 main")
READ = ("data.py:3 read", "train.py:5 main")


def status(step=17, section="step", frames=REDUCE, **rest):
    return RankStatus(section=section, step=step, seconds=61.0, frames=frames, **rest)


def blamed(*statuses):
    suspects = find_suspects(dict(enumerate(statuses)))
    return None if suspects is None else (suspects.ranks, suspects.reason)


def test_who_is_to_blame():
    waiting = status()
    assert blamed(waiting, waiting, status(exit_reason="KeyError")) == ((2,), "left the run (KeyError)")
    silence = "told nothing more: stopped, dead, or on a machine out of reach"
    assert blamed(waiting, status(step=16, unresponsive=True), None) == ((1, 2), silence)
    assert blamed(waiting, status(step=16), waiting) == ((1,), "is in step 16 while others are in step 17")
    assert blamed(waiting, waiting, status(section="checkpointing")) == ((2,), "is in another section")
    working = "is not in torch.distributed, where the others wait"
    assert blamed(status(frames=READ), waiting) == ((0,), working)
    elsewhere = status(frames=("torch/distributed/distributed_c10d.py:5 barrier",))
    assert blamed(waiting, elsewhere, waiting) == ((1,), "is at another place of the program")


def test_nobody_is_blamed_without_a_reason():
    waiting = status()
    assert blamed(waiting, waiting) is None
    assert blamed(waiting) is None
    assert blamed(None, None) is None
    assert blamed(status(section="step"), status(section="checkpointing")) is None


def test_the_report_has_a_line_for_ranks_at_the_same_place():
    statuses = {rank: status() for rank in range(6)} | {4: status(frames=READ), 6: None}
    statuses |= {
        7: status(step=16, unresponsive=True),
        8: status(exit_reason="it is done"),
        9: status(step=None, section="setup"),
    }
    assert format_report(statuses, seconds=61.4, stacks="run/hang_stack_*.txt") == (
        "no progress for 61 s: look at rank 8, which left the run (it is done)\n"
        "  ranks 0-3,5: step 17, at torch/distributed/distributed_c10d.py:9 all_reduce < train.py:7 main\n"
        "  rank 4: step 17, at data.py:3 read < train.py:5 main\n"
        "  rank 6: never told where it is\n"
        "  rank 7: last told: step 16, at torch/distributed/distributed_c10d.py:9 all_reduce < train.py:7 main\n"
        "  rank 8: left the run: it is done\n"
        "  rank 9: setup, at torch/distributed/distributed_c10d.py:9 all_reduce < train.py:7 main\n"
        "  whole stacks: run/hang_stack_*.txt"
    )
    assert format_report({0: status(frames=())}, seconds=2) == "no progress for 2 s\n  rank 0: step 17"


def test_ranks_are_listed_as_runs():
    assert [format_ranks(ranks) for ranks in ([], [3], [0, 1], [0, 2, 3, 4])] == ["", "3", "0-1", "0,2-4"]
