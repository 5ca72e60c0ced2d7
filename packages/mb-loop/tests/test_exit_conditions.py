import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mb_loop.exits.exit_conditions import DurationLimit, ExitConditions
from mb_loop.exits.outcome import LoopExit


def limit(minutes):
    """Return a limit that is first queried after ten minutes."""
    return DurationLimit(
        minutes=minutes, clock=lambda: 600.0, start_time=0.0, max_across_ranks=lambda value: value
    )


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"stop_requested": lambda step: "SIGTERM on rank 1", "duration": limit(1), "interval": 1}, "signal"),
        ({"duration": limit(1), "interval": 1}, "duration"),
        (
            {"duration": limit(11), "interval": 4, "straggler_stop_requested": lambda step: "rank 3"},
            "interval",
        ),
        (
            {"duration": limit(10.01), "interval": 3, "straggler_stop_requested": lambda step: "rank 3"},
            "stragglers",
        ),
        ({"duration": limit(10.01), "interval": 3}, None),
        ({}, None),
    ],
)
def test_the_first_condition_wins(settings, reason):
    leave = ExitConditions(**settings).decide(8)
    assert (leave and leave.reason) == reason


def test_messages_quote_stop_requests_and_slow_ranks():
    source = {"stop_requested": lambda step: f"SIGINT on rank {step}"}
    assert ExitConditions(**source).decide(3) == LoopExit(
        reason="signal", message="stopped after step 3: SIGINT on rank 3"
    )
    slow = ExitConditions(straggler_stop_requested=lambda step: "rank 7 is slow").decide(3)
    assert slow == LoopExit(reason="stragglers", message="stopped after step 3: rank 7 is slow")


def test_ranks_agree_on_the_duration():
    compared = []

    def another_rank_is_late(minutes):
        compared.append(minutes)
        return 30.0

    duration = DurationLimit(
        minutes=20, clock=lambda: 600.0, start_time=0.0, max_across_ranks=another_rank_is_late
    )
    assert (ExitConditions(duration=duration).decide(3).reason, compared) == ("duration", [10.0])


def test_a_limit_reached_in_an_evaluation_is_reached_after_the_step():
    now, compared = [0.0], []
    duration = DurationLimit(
        minutes=60,
        clock=lambda: now[0],
        start_time=0.0,
        max_across_ranks=lambda value: compared.append(value) or value,
    )
    while now[0] < 1000:
        now[0] += 1
        assert not duration.reached_after(int(now[0]))
    now[0] = 3700.0
    assert duration.reached()
    del compared[:]
    assert duration.reached_after(1001)
    assert compared == []


def test_a_wall_clock_that_is_set_during_a_run_does_not_end_it(monkeypatch):
    wall, monotonic = [1e9], [50.0]
    monkeypatch.setattr(time, "time", clock := lambda: wall[0])
    monkeypatch.setattr(time, "monotonic", lambda: monotonic[0])
    duration = DurationLimit(
        minutes=20, clock=clock, start_time=wall[0] - 600, max_across_ranks=lambda value: value
    )
    for jump in (86_400, -172_800):
        wall[0] += jump
        assert not duration.reached()
    monotonic[0] += 601
    assert duration.reached()


def test_the_caller_may_limit_the_duration():
    late = {"duration_stop_requested": lambda step: f"time is up on rank {step}"}
    assert ExitConditions(**late).decide(3) == LoopExit(
        reason="duration", message="stopped after step 3: time is up on rank 3"
    )
    assert ExitConditions(stop_requested=lambda step: "SIGTERM", **late).decide(3).reason == "signal"


def steps_and_comparisons(*, minutes, step_seconds, start=0):
    """Return the number of steps of a run, and the number of clock comparisons."""
    now, compared = [0.0], []
    duration = DurationLimit(
        minutes=minutes,
        clock=lambda: now[0],
        start_time=0.0,
        max_across_ranks=lambda value: compared.append(value) or value,
    )
    step = start
    while True:
        step += 1
        now[0] += step_seconds(step)
        if duration.reached_after(step):
            return step - start, len(compared)


def test_clocks_are_compared_a_few_times_in_a_long_run():
    steps, comparisons = steps_and_comparisons(minutes=240, step_seconds=lambda step: 1.0)
    assert steps == 240 * 60
    assert comparisons < 40


@settings(max_examples=30, deadline=None)
@given(seconds=st.floats(0.5, 90), start=st.integers(0, 1000), wobble=st.floats(1, 2))
def test_a_run_ends_at_the_first_step_beyond_its_limit_if_steps_are_at_most_twice_as_slow(
    seconds, start, wobble
):
    def step_seconds(step):
        return seconds * (wobble if step % 2 else 1)

    steps, _ = steps_and_comparisons(minutes=60, step_seconds=step_seconds, start=start)
    elapsed, exact = 0.0, 0
    while elapsed < 3600:
        exact += 1
        elapsed += step_seconds(start + exact)
    assert steps in (exact, exact + 1)  # the sums differ in the last bit
