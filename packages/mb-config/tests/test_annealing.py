"""Pairs of optimizer and scheduler that recipes start from."""

import pytest

from mb_config import SchedulerConfig, TrainingConfig, given_fields, runtime_config_update
from mb_config.schedules.annealing import (
    distributed_fused_adam_with_cosine_annealing,
    distributed_fused_adam_with_cosine_annealing_samples,
    distributed_muon_with_cosine_annealing,
)
from mb_schema.value_types import FieldTypeError, reject_wrong_types

SCHEDULE = {
    "start_weight_decay": 0.033,
    "end_weight_decay": 0.033,
    "lr_decay_style": "cosine",
    "override_opt_param_scheduler": True,
}


def test_adam_in_iterations():
    optimizer, scheduler = distributed_fused_adam_with_cosine_annealing(lr_decay_iters=50, max_lr=3e-4)
    assert (optimizer.optimizer, optimizer.lr, optimizer.min_lr) == ("adam", 3e-4, pytest.approx(3e-5))
    assert (optimizer.adam_beta2, optimizer.adam_eps, optimizer.weight_decay) == (0.95, 1e-8, 0.1)
    assert (optimizer.bf16, optimizer.fp16, optimizer.use_distributed_optimizer) == (True, False, True)
    assert scheduler == SchedulerConfig(
        **SCHEDULE,
        lr_wsd_decay_style="minus_sqrt",
        lr_warmup_iters=2000,
        lr_decay_iters=50,
    )


def test_only_wsd_has_a_decay_phase():
    _, scheduler = distributed_fused_adam_with_cosine_annealing(lr_decay_iters=50, lr_decay_style="WSD")
    assert scheduler.lr_wsd_decay_iters == 50


def test_adam_in_samples():
    optimizer, scheduler = distributed_fused_adam_with_cosine_annealing_samples(min_lr=0.0)
    assert (optimizer.min_lr, optimizer.clip_grad) == (0.0, 1.0)
    assert scheduler == SchedulerConfig(**SCHEDULE)


def test_muon():
    optimizer, scheduler = distributed_muon_with_cosine_annealing(muon_num_ns_steps=6, lr_warmup_iters=10)
    assert (optimizer.optimizer, optimizer.muon_nesterov, optimizer.muon_num_ns_steps, optimizer.min_lr) == (
        "dist_muon",
        True,
        6,
        None,
    )
    assert scheduler == SchedulerConfig(**SCHEDULE, lr_warmup_iters=10, lr_decay_iters=2000)


@pytest.mark.parametrize(
    ("precision", "formats"),
    [("bf16-mixed", {"bf16"}), ("16-mixed", {"fp16"}), ("bf16_with_mxfp8_mixed", {"bf16"}), ("32", set())],
)
def test_only_the_format_of_the_precision_is_set(precision, formats):
    optimizer, _ = distributed_fused_adam_with_cosine_annealing(precision)
    assert given_fields(optimizer) & {"bf16", "fp16"} == formats


@pytest.mark.parametrize(
    "sections",
    [
        distributed_fused_adam_with_cosine_annealing(lr_warmup_iters=10),
        distributed_fused_adam_with_cosine_annealing(lr_warmup_iters=10, lr_decay_iters=100),
        distributed_muon_with_cosine_annealing(lr_warmup_iters=10, lr_decay_iters=100),
    ],
)
def test_the_sections_satisfy_the_rules(make, sections):
    optimizer, scheduler = sections
    config = make(
        optimizer=optimizer,
        scheduler=scheduler,
        mixed_precision="bf16_mixed",
        train=TrainingConfig(train_iters=100, global_batch_size=8, micro_batch_size=2),
    )
    runtime_config_update(config, world_size=2)
    assert config.scheduler.lr_decay_steps == 800


def test_a_recipe_of_megatron_bridge_gives_a_number_for_manual_gc_eval():
    reject_wrong_types(
        TrainingConfig(manual_gc=True, manual_gc_interval=100, manual_gc_eval=100), path="train"
    )
    with pytest.raises(FieldTypeError, match=r"train\.manual_gc_eval: expected .*, not 'yes'"):
        reject_wrong_types(TrainingConfig(manual_gc_eval="yes"), path="train")
