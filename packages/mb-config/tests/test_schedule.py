"""Lengths of the schedule, in sequences."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mb_config import (
    SchedulerConfig,
    SchedulerSteps,
    TrainingConfig,
    scheduler_steps,
)
from mb_config.schedules.learning_rate import epoch_iterations, length_overrides, sequences_after


def steps(train, **scheduler):
    return scheduler_steps(TrainingConfig(**train), SchedulerConfig(**scheduler))


def lengths(decay, warmup, weight, last=None):
    return SchedulerSteps(
        lr_decay_steps=decay, lr_warmup_steps=warmup, wd_incr_steps=weight, wsd_decay_steps=last
    )


ITERS = {"train_iters": 100, "global_batch_size": 8}
SAMPLES = {"train_samples": 1000}


@pytest.mark.parametrize(
    ("train", "scheduler", "expected"),
    [
        (ITERS, {"lr_warmup_iters": 10}, lengths(800, 80, 800)),
        (SAMPLES, {"lr_warmup_fraction": 0.1}, lengths(1000, 100, 1000)),
        (SAMPLES, {"lr_warmup_samples": 30, "lr_decay_samples": 500}, lengths(500, 30, 1000)),
        (ITERS, {"lr_decay_iters": 50, "lr_warmup_fraction": 0.5}, lengths(400, 200, 800)),
        ({**ITERS, "train_iters": 2}, {"lr_warmup_iters": 10}, lengths(16, 15, 16)),
        (ITERS, {"max_steps": 1000}, lengths(8000, 0, 8000)),
        (ITERS, {"lr_decay_style": "WSD", "lr_wsd_decay_iters": 20}, lengths(800, 0, 800, 160)),
        (ITERS, {"lr_decay_style": "WSD"}, lengths(800, 0, 800, 800)),
        (SAMPLES, {"lr_decay_style": "WSD"}, lengths(1000, 0, 1000, 1000)),
        ({**ITERS, "rampup_batch_size": [4, 4, 40]}, {"lr_warmup_iters": 12}, lengths(760, 56, 760)),
        (
            {**ITERS, "step_batch_size_schedule": "0:4 40:16"},
            {"lr_warmup_iters": 12},
            lengths(1480, 72, 1480),
        ),
        (
            {**ITERS, "rampup_batch_size": [4, 4, 40]},
            {"lr_decay_style": "WSD", "lr_wsd_decay_iters": 95},
            lengths(760, 0, 760, 740),
        ),
    ],
)
def test_scheduler_steps(train, scheduler, expected):
    assert steps(train, **scheduler) == expected


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ({"global_batch_size": 8}, "train.train_iters: is not set"),
        ({"train_iters": 8}, "train.global_batch_size: is not set"),
        ({"train_iters": 0, "global_batch_size": 8}, "would end at 0 sequences"),
    ],
)
def test_a_schedule_without_a_length_is_rejected(train, message):
    with pytest.raises(ValueError, match=message):
        steps(train)


def consumed_by_walking(steps, train, unit):
    """The obvious slow version: one step after the other."""
    first, increment, length = train.rampup_batch_size
    consumed = 0
    for _ in range(steps):
        blocks = (train.global_batch_size - first) // increment
        grown = blocks if consumed >= length else consumed * blocks // length
        consumed += (first + grown * increment) // unit * unit
    return consumed


@given(
    st.integers(0, 60),
    st.integers(2, 9),
    st.integers(1, 5),
    st.integers(0, 6),
    st.integers(1, 200),
    st.booleans(),
)
def test_sequences_of_a_growing_batch(steps, first, increment, blocks, length, lenient):
    train = TrainingConfig(
        global_batch_size=first + blocks * increment,
        micro_batch_size=1,
        rampup_batch_size=[first, increment, length],
        decrease_batch_size_if_needed=lenient,
    )
    walked = consumed_by_walking(steps, train, 2 if lenient else 1)
    assert sequences_after(steps, train, data_parallel_size=2) == walked


@given(st.integers(0, 60), st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(1, 50))
def test_sequences_of_a_batch_in_steps(steps, sizes, apart):
    text = " ".join(f"{number * apart * 7}:{size}" for number, size in enumerate(sizes))
    consumed = 0
    for _ in range(steps):
        consumed += sizes[min(consumed // apart, len(sizes) - 1)]
    train = TrainingConfig(global_batch_size=1, step_batch_size_schedule=text)
    assert sequences_after(steps, train, seq_length=7) == consumed


def test_a_batch_that_is_rounded_down_ends_the_schedule_earlier():
    train = TrainingConfig(
        train_iters=100, global_batch_size=10, micro_batch_size=2, decrease_batch_size_if_needed=True
    )
    found = scheduler_steps(train, SchedulerConfig(), data_parallel_size=2)
    assert found == lengths(800, 0, 800)


def test_steps_of_epochs():
    assert epoch_iterations(1.5, dataset_size=100, global_batch_size=8) == 19
    assert epoch_iterations(3, dataset_size=100, global_batch_size=64) == 5  # not 3 x 2: batches cross epochs
    assert epoch_iterations(0.1, dataset_size=30, global_batch_size=1) == 3
    assert epoch_iterations(1, dataset_size=7, global_batch_size=8) == 1
    with pytest.raises(ValueError, match=r"train.num_epochs: 0 epochs of 7 sequences"):
        epoch_iterations(0, dataset_size=7, global_batch_size=8)


@pytest.mark.parametrize(
    ("section", "overrides"),
    [
        ({"train_iters": 500}, ("train.train_iters=20",)),
        ({"train_samples": 9000, "global_batch_size": 8}, ("train.train_samples=160",)),
        (
            {"train_samples": 9000, "global_batch_size": 8, "rampup_batch_size": [4, 4, 32]},
            ("train.train_iters=20", "train.train_samples=null"),
        ),
        ({"num_epochs": 2.0}, ("train.train_iters=20", "train.num_epochs=null")),
    ],
)
def test_a_run_gets_the_requested_length_in_samples_or_in_steps(section, overrides):
    assert length_overrides(TrainingConfig(**section), 20) == overrides
