"""Lengths of the schedule, in sequences."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mb_config import (
    OptimizerConfig,
    SchedulerConfig,
    SchedulerSteps,
    TrainingConfig,
    learning_rate,
    scheduler_steps,
)


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
def test_a_schedule_without_length_is_refused(train, message):
    with pytest.raises(ValueError, match=message):
        steps(train)


@given(st.integers(1, 500), st.integers(1, 64), st.integers(0, 1000), st.integers(0, 40_000))
def test_the_learning_rate_stays_in_its_range(iters, batch, warmup, consumed):
    section = SchedulerConfig(lr_decay_style="cosine", lr_warmup_iters=warmup)
    lengths = steps({"train_iters": iters, "global_batch_size": batch}, lr_warmup_iters=warmup)
    rate = learning_rate(
        consumed, steps=lengths, scheduler=section, optimizer=OptimizerConfig(lr=1.0, min_lr=0.1)
    )
    assert 0.0 <= rate <= 1.0
    assert consumed <= lengths.lr_warmup_steps or rate >= 0.1


def test_a_learning_rate_must_be_set():
    with pytest.raises(ValueError, match=r"optimizer.lr: is not set"):
        learning_rate(0, steps=lengths(1, 0, 1), scheduler=SchedulerConfig(), optimizer=OptimizerConfig())
