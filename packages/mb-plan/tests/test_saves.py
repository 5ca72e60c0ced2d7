"""Interval of checkpoints, work lost at a failure, and disk space."""

import math
from types import SimpleNamespace

import pytest

from mb_plan.time.saves import GPU_HOURS_BETWEEN_FAILURES, MAX_SECONDS, plan_saves

TIB = 2**40


def planned(*, size=TIB, ranks=1024, step_seconds=10.0, write_bytes=None, steps=10_000, **checkpoint):
    """Plan the saves of a run with a checkpoint of this size."""
    plan = SimpleNamespace(checkpoint_bytes=size, world_size=ranks)
    sections = {"train": {"train_iters": steps}, "checkpoint": checkpoint}
    return plan_saves(sections, plan, step_seconds=step_seconds, write_bytes=write_bytes)


def wasted(seconds, saves):
    """Return the share of time that saving every so many seconds costs, with what failures lose in the mean."""
    return saves.held_seconds / seconds + seconds / 2 / saves.failure_seconds


@pytest.mark.parametrize("ranks", [1024, 4096, 16_384])
@pytest.mark.parametrize("held_by", [{"async_save": True}, {"write_bytes": 2**42}])
def test_the_best_interval_wastes_the_least_time(ranks, held_by):
    saves = planned(ranks=ranks, step_seconds=0.01, **held_by)
    best = min(range(1, 7200), key=lambda seconds: wasted(seconds, saves))
    least = max(min(best, MAX_SECONDS), 2 * saves.write_seconds)
    assert saves.best_interval * saves.step_seconds == pytest.approx(least, rel=0.34)  # rounded down
    assert saves.best_interval * saves.step_seconds <= least + 1


def test_failures_are_as_frequent_as_on_the_16384_gpus_of_llama_3():
    """419 unexpected interruptions in 54 days."""
    assert planned(ranks=16_384).failure_seconds == pytest.approx(54 * 86_400 / 419, rel=1e-4)
    assert pytest.approx(54 * 24 * 16_384 / 419, rel=1e-4) == GPU_HOURS_BETWEEN_FAILURES


def test_a_save_ends_before_the_next_one_begins():
    saves = planned(ranks=16_384, write_bytes=2**30, async_save=True)
    assert saves.write_seconds == 1024
    assert saves.best_interval == 200  # 204.8 steps of ten seconds


def test_few_gpus_save_once_an_hour():
    assert planned(ranks=1, size=2**30, async_save=True).best_interval == 350  # 360, rounded down


def test_a_failure_loses_an_interval_and_the_checkpoint_in_flight():
    saves = planned(save_interval=500, write_bytes=2**30)
    assert saves.lost_seconds == 500 * 10 + 1024
    assert planned(save_interval=None).lost_seconds is None
    assert planned(save_interval="auto").interval is None


def on_disk(*, steps, interval, newest, retained):
    """Return the largest number of checkpoints that exist at once: after each save, before the oldest is deleted."""
    exist, most = [], 0
    for step in [*range(interval, steps + 1, interval), *([steps] if steps % interval else [])]:
        exist.append(step)
        most = max(most, len(exist))
        if newest != -1:
            exist = [s for s in exist if s in exist[-newest:] or (retained and s % retained == 0)]
    return most


@pytest.mark.parametrize("steps", [90, 100, 1000])
@pytest.mark.parametrize("newest", [-1, 1, 3])
@pytest.mark.parametrize("retained", [None, 20, 30])
def test_checkpoints_on_disk_are_those_that_retention_keeps(steps, newest, retained):
    saves = planned(steps=steps, save_interval=10, most_recent_k=newest, save_retain_interval=retained)
    expected = on_disk(steps=steps, interval=10, newest=newest, retained=retained)
    assert saves.checkpoints == expected
    assert saves.disk_bytes == saves.checkpoints * TIB


def test_what_is_not_counted_is_not_planned():
    assert planned(size=None) is None
    assert planned(steps=None).disk_bytes is None
    assert not math.isnan(planned(step_seconds=1e-3).best_interval)
