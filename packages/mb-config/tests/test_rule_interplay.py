"""Rules that interact with each other or with resolving."""

import pytest

from mb_config import (
    OptimizerConfig,
    SchedulerConfig,
    TrainingConfig,
    runtime_config_update,
    scheduler_steps,
)
from mb_config.schedules.learning_rate import weight_decays


def test_v057_a_length_in_samples_may_be_finalized_and_resolved_twice(make):
    config = make(train=TrainingConfig(train_samples=800, global_batch_size=8, micro_batch_size=2))
    config.scheduler.lr_warmup_iters = 0
    config.train.finalize()
    config.train.finalize()
    runtime_config_update(config, world_size=1)
    assert runtime_config_update(config, world_size=1) == []
    assert config.check(world_size=1) == []


def test_v139d_deprecated_fields_are_moved_before_the_evaluation_is_checked(make):
    config = make()
    config.train.eval_iters, config.train.skip_train = 3, True
    assert [problem.id for problem in config.check(world_size=1)] == ["V139d"]
    moved = [change.field for change in runtime_config_update(config, world_size=1) if "V139d" in change.why]
    assert moved == ["validation.eval_iters", "validation.skip_train"]
    assert (config.validation.eval_iters, config.validation.skip_train) == (3, True)


def test_v203_two_different_horizons_are_rejected_and_not_overwritten(make):
    config = make(scheduler=SchedulerConfig(max_steps=1000, lr_decay_iters=500))
    assert [problem.message for problem in config.check(world_size=1)] == [
        "1000 differs from lr_decay_iters=500"
    ]


@pytest.mark.parametrize(
    ("fraction", "warmup"), [(0.1, 0.1 * 21), (1 / 3, 7), (0.99, 0.99 * 21), (1.0, 20)], ids=str
)
def test_v203_a_fraction_of_the_horizon_is_not_rounded(fraction, warmup):
    train = TrainingConfig(train_iters=7, global_batch_size=3)
    assert scheduler_steps(train, SchedulerConfig(lr_warmup_fraction=fraction)).lr_warmup_steps == warmup


def test_v208_weight_decays_default_to_the_optimizer():
    assert weight_decays(SchedulerConfig(), OptimizerConfig(weight_decay=0.1)) == (0.1, 0.1)


def test_v120_to_v180_all_problems_of_a_sharded_run_are_reported_together(make):
    config = make()
    config.ddp.use_megatron_fsdp = True
    config.dist.use_torch_fsdp2 = config.dist.use_tp_pp_dp_mapping = True
    config.ddp.fsdp_manual_registration = True
    found = config.check(world_size=1, env={"CUDA_DEVICE_MAX_CONNECTIONS": "1"})
    assert [problem.id for problem in found] == ["V176", "V179", "V120", "V177"]
