"""Resolving the configuration of a MIMO model, which does not read the model section."""

from copy import deepcopy
from dataclasses import dataclass

import pytest

from mb_config import (
    RULES,
    ConfigError,
    DistributedDataParallelConfig,
    TrainingConfig,
    mimo_runtime_config_update,
    runtime_config_update,
)


@dataclass
class Modules:
    """A model without sizes, dtypes or anything else."""


@pytest.fixture
def mimo(make):
    return make(
        model=Modules(),
        train=TrainingConfig(train_samples=1000, global_batch_size=30, micro_batch_size=3, eval_iters=4),
        ddp=DistributedDataParallelConfig(use_distributed_optimizer=True),
    )


def test_fields_that_do_not_depend_on_the_model_are_resolved(mimo):
    mimo.scheduler.lr_warmup_iters = 0
    mimo.scheduler.lr_warmup_fraction = 0.1
    changes = mimo_runtime_config_update(mimo, rules=RULES)
    assert {change.field: change.new for change in changes} == {
        "data_parallel_size": 1,
        "optimizer.use_distributed_optimizer": True,
        "validation.eval_iters": 4,
        "validation.eval_global_batch_size": 30,
        "validation.eval_micro_batch_size": 3,
        "train.train_iters": 33,
        "scheduler.start_weight_decay": 0.01,
        "scheduler.end_weight_decay": 0.01,
        "optimizer.min_lr": 0.0,
        "scheduler.lr_decay_steps": 1000,
        "scheduler.lr_warmup_steps": 100,
        "scheduler.wd_incr_steps": 1000,
    }


def test_resolving_is_idempotent(mimo):
    mimo.scheduler.lr_warmup_iters = 0
    mimo_runtime_config_update(mimo)
    after = deepcopy(mimo)
    assert mimo_runtime_config_update(mimo) == []
    assert mimo == after


@pytest.mark.parametrize(
    ("section", "value"), [("mixed_precision", "bf16_mixed"), ("comm_overlap", Modules())]
)
def test_settings_of_the_modules_are_rejected(mimo, section, value):
    setattr(mimo, section, value)
    with pytest.raises(ConfigError, match=r"V224.*is set for a MIMO model"):
        mimo_runtime_config_update(mimo)


def test_violated_rules_are_errors(mimo):
    mimo.rng.seed = 0
    with pytest.raises(ConfigError, match="V240"):
        mimo_runtime_config_update(mimo, rules=RULES)


class Traced:
    """Overlap section that records the values that it receives."""

    def __init__(self):
        self.trace = []

    def setup(self, model, optimizer, ddp):
        self.trace.append(("overlap", model.bf16, self.data_parallel_size))

    data_parallel_size = None


def test_order_of_resolving(make):
    """Overlap reads the precision and the data-parallel size; rules read the resolved configuration."""
    overlap = Traced()
    config = make(mixed_precision="bf16_mixed", comm_overlap=overlap)

    class Last:
        id, fields, severity, why, fix = (
            "X1",
            ("model.bf16", "validation.eval_global_batch_size"),
            "error",
            "",
            "",
        )
        fails, passes = {}, {}

        @staticmethod
        def test(bf16, batch):
            overlap.trace.append(("rules", bf16, batch))

    runtime_config_update(config, world_size=2, rules=[Last])
    assert overlap.trace == [("overlap", True, 2), ("rules", True, 8)]
