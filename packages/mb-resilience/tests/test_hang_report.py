from mb_resilience.hang_report import Standing, find_suspects, listed, write_report

REDUCE = ("torch/distributed/distributed_c10d.py:9 all_reduce", "train.py:7 main")
READ = ("data.py:3 read", "train.py:5 main")


def standing(step=17, section="step", places=REDUCE, **rest):
    return Standing(section=section, step=step, seconds=61.0, places=places, **rest)


def blamed(*standings):
    suspects = find_suspects(dict(enumerate(standings)))
    return None if suspects is None else (suspects.ranks, suspects.reason)


def test_who_is_to_blame():
    waits = standing()
    assert blamed(waits, waits, standing(left="KeyError")) == ((2,), "left the run (KeyError)")
    silence = "told nothing more: stopped, dead, or on a machine out of reach"
    assert blamed(waits, standing(step=16, silent=True), None) == ((1, 2), silence)
    assert blamed(waits, standing(step=16), waits) == ((1,), "is in step 16 while others are in step 17")
    assert blamed(waits, waits, standing(section="checkpointing")) == ((2,), "is in another section")
    working = "is not in torch.distributed, where the others wait"
    assert blamed(standing(places=READ), waits) == ((0,), working)
    elsewhere = standing(places=("torch/distributed/distributed_c10d.py:5 barrier",))
    assert blamed(waits, elsewhere, waits) == ((1,), "is at another place of the program")


def test_nobody_is_blamed_without_a_reason():
    waits = standing()
    assert blamed(waits, waits) is None
    assert blamed(waits) is None
    assert blamed(None, None) is None
    assert blamed(standing(section="step"), standing(section="checkpointing")) is None


def test_the_report_has_a_line_for_ranks_at_the_same_place():
    standings = {rank: standing() for rank in range(6)} | {4: standing(places=READ), 6: None}
    standings |= {
        7: standing(step=16, silent=True),
        8: standing(left="it is done"),
        9: standing(step=None, section="setup"),
    }
    assert write_report(standings, seconds=61.4, stacks="run/hang_stack_*.txt") == (
        "no progress for 61 s: look at rank 8, which left the run (it is done)\n"
        "  ranks 0-3,5: step 17, at torch/distributed/distributed_c10d.py:9 all_reduce < train.py:7 main\n"
        "  rank 4: step 17, at data.py:3 read < train.py:5 main\n"
        "  rank 6: never told where it is\n"
        "  rank 7: last told: step 16, at torch/distributed/distributed_c10d.py:9 all_reduce < train.py:7 main\n"
        "  rank 8: left the run: it is done\n"
        "  rank 9: setup, at torch/distributed/distributed_c10d.py:9 all_reduce < train.py:7 main\n"
        "  whole stacks: run/hang_stack_*.txt"
    )
    assert write_report({0: standing(places=())}, seconds=2) == "no progress for 2 s\n  rank 0: step 17"


def test_ranks_are_listed_as_runs():
    assert [listed(ranks) for ranks in ([], [3], [0, 1], [0, 2, 3, 4])] == ["", "3", "0-1", "0,2-4"]
