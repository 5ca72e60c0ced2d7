"""After a resume the learning rate is that of the stored or of the configured schedule, at every step.

The right values are those of Megatron's own scheduler that runs from the start to the end without an interruption.
"""

import pickle
from dataclasses import dataclass, field

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mb_checkpoint.errors import CheckpointScheduleError
from mb_checkpoint.load.param_groups import (
    reject_schedule_change,
    reject_unstored_settings,
    schedule_changes,
    unstored_settings,
)
from mb_checkpoint.megatron.scheduler import load_scheduler, scheduler_state
from mb_config import OptimizerConfig, SchedulerConfig, TrainingConfig, scheduler_steps
from mb_config.mcore import build_scheduler
from mb_config.schedules.learning_rate import sequences_after

STYLES = ("constant", "linear", "cosine", "inverse-square-root", "WSD")
WSD_STYLES = ("exponential", "linear", "cosine", "minus_sqrt")
OLD = ("init_lr", "wsd_decay_steps", "lr_wsd_decay_style")
"""What Megatron's own state lacks, and what an earlier version did not store."""


@dataclass
class Optimizer:
    param_groups: list = field(default_factory=lambda: [{"params": []}, {"params": [], "wd_mult": 0.0}])


@dataclass
class Run:
    train: TrainingConfig
    scheduler: SchedulerConfig
    optimizer: OptimizerConfig

    def start(self):
        steps = scheduler_steps(self.train, self.scheduler, data_parallel_size=1)
        return build_scheduler(
            Optimizer(), scheduler=self.scheduler, optimizer_config=self.optimizer, steps=steps
        )

    def advance(self, scheduler, *, first, steps):
        """Return learning rate and weight decay after each step."""
        found = []
        for step in range(first, first + steps):
            before, after = (sequences_after(each, self.train) for each in (step, step + 1))
            scheduler.step(increment=after - before)
            found.append(rates(scheduler))
        return found


def rates(scheduler):
    return [(group["lr"], group["weight_decay"]) for group in scheduler.optimizer.param_groups]


@st.composite
def runs(draw):
    """Return the sections of a run of 20 to 60 steps."""
    length, style = draw(st.integers(20, 60)), draw(st.sampled_from(STYLES))
    train = TrainingConfig(train_iters=length, global_batch_size=16, micro_batch_size=4)
    if draw(st.booleans()):
        train.rampup_batch_size = draw(st.sampled_from([[4, 4, 120], [8, 8, 64]]))
    scheduler = SchedulerConfig(
        lr_decay_style=style,
        lr_decay_iters=draw(st.none() | st.integers(20, 80)),
        lr_warmup_init=draw(st.sampled_from([0.0, 1e-4])),
    )
    if style == "WSD":
        scheduler.lr_wsd_decay_iters = draw(st.none() | st.integers(1, 20))
        scheduler.lr_wsd_decay_style = draw(st.sampled_from(WSD_STYLES))
    if draw(st.booleans()):
        scheduler.lr_warmup_iters = draw(st.integers(0, 15))
    else:
        scheduler.lr_warmup_fraction = draw(st.sampled_from([0.0, 0.013, 0.1, 0.5, 1.0]))
    if draw(st.booleans()):
        scheduler.weight_decay_incr_style = draw(st.sampled_from(["linear", "cosine"]))
        scheduler.start_weight_decay, scheduler.end_weight_decay = 0.01, 0.1
    return Run(train, scheduler, OptimizerConfig(lr=draw(st.sampled_from([1e-3, 2e-3])), min_lr=1e-4))


@st.composite
def pairs(draw):
    """Return the sections of a run and of the one that resumes it, which differ in few settings or in all of them."""
    first = draw(runs())
    if draw(st.booleans()):
        return first, draw(runs())
    second, other = pickle.loads(pickle.dumps(first)), draw(runs())
    name = draw(
        st.sampled_from(
            ["nothing", "train", "scheduler", "optimizer", "lr_wsd_decay_style", "lr_warmup_init"]
        )
    )
    if hasattr(second, name):
        setattr(second, name, getattr(other, name))
    elif name != "nothing":
        setattr(second.scheduler, name, getattr(other.scheduler, name))
    return first, second


@settings(max_examples=300, deadline=None)
@given(runs=pairs(), cut=st.integers(0, 19), policy=st.sampled_from(["stored", "configured", "equal"]))
def test_a_resumed_run_follows_the_stored_or_the_configured_schedule(runs, cut, policy):
    first, second = runs
    before = first.start()
    first.advance(before, first=0, steps=cut)
    stored = pickle.loads(pickle.dumps(scheduler_state(before)))
    second.scheduler.use_checkpoint_opt_param_scheduler = policy == "stored"
    second.scheduler.override_opt_param_scheduler = policy == "configured"
    resumed = second.start()
    resumed.step(increment=3)  # a scheduler that is not fresh
    changes = schedule_changes(stored, scheduler_state(resumed))
    right, rest = (second if policy == "configured" else first).start(), 60
    right.step(increment=stored["num_steps"])
    expected = [rates(right), *second.advance(right, first=cut, steps=rest)]
    if policy == "equal" and changes:
        with pytest.raises(CheckpointScheduleError, match=r"differs from the checkpoint's"):
            reject_schedule_change(changes)
        return
    load_scheduler(resumed, stored)
    assert [rates(resumed), *second.advance(resumed, first=cut, steps=rest)] == expected


@settings(max_examples=100, deadline=None)
@given(runs=pairs(), cut=st.integers(0, 19))
def test_a_checkpoint_of_an_earlier_version_resumes_with_the_stored_schedule_or_is_rejected(runs, cut):
    first, second = runs
    before = first.start()
    first.advance(before, first=0, steps=cut)
    stored = {name: value for name, value in scheduler_state(before).items() if name not in OLD}
    second.scheduler.use_checkpoint_opt_param_scheduler = True
    resumed = second.start()
    changes, unstored = schedule_changes(stored, scheduler_state(resumed)), unstored_settings(stored)
    if unstored and changes:
        with pytest.raises(
            CheckpointScheduleError, match=r"the checkpoint does not hold .* and other settings differ"
        ):
            reject_unstored_settings(unstored, changes)
        return
    reject_unstored_settings(unstored, changes)
    right = first.start()
    known = scheduler_state(right)
    assume(not unstored or all(known[name] == scheduler_state(resumed)[name] for name in OLD))
    right.step(increment=stored["num_steps"])
    load_scheduler(resumed, stored)
    assert first.advance(resumed, first=cut, steps=60) == first.advance(right, first=cut, steps=60)
