import pytest

from mb_loop.exits import Exits
from mb_loop.outcome import Exit


def exits(**settings):
    return Exits(**{"clock": lambda: 600.0, "start_time": 0.0, **settings})


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"wish": lambda step: "SIGTERM on rank 1", "duration_minutes": 1, "interval": 1}, "signal"),
        ({"duration_minutes": 1, "interval": 1}, "duration"),
        ({"duration_minutes": 11, "interval": 4}, "interval"),
        ({"duration_minutes": 10.01, "interval": 3}, None),
        ({}, None),
    ],
)
def test_the_first_condition_wins(settings, reason):
    leave = exits(**settings).decide(8)
    assert (leave and leave.reason) == reason


def test_a_wish_is_quoted():
    leave = exits(wish=lambda step: f"SIGTERM on rank {step}").decide(3)
    assert leave == Exit(reason="signal", message="stopped after step 3: SIGTERM on rank 3")


def test_the_duration_is_agreed_with_the_other_ranks():
    asked = []

    def another_rank_is_late(flag):
        asked.append(flag)
        return True

    leave = exits(duration_minutes=20, any_rank=another_rank_is_late).decide(3)
    assert (leave.reason, asked) == ("duration", [False])


def test_without_a_duration_nobody_is_asked():
    def never(flag):
        raise AssertionError

    assert exits(any_rank=never).decide(1) is None
