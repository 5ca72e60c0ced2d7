"""Resolving: computed fields, reported changes, and values of the user that are never overwritten silently."""

from copy import deepcopy
from dataclasses import dataclass

import pytest

from mb_config import (
    Change,
    ConfigError,
    DistributedDataParallelConfig,
    MixedPrecisionConfig,
    OptimizerConfig,
    Provenance,
    SchedulerConfig,
    TrainingConfig,
    UnknownPrecisionError,
    apply_overrides,
    get_mixed_precision_config,
    runtime_config_update,
)
from mb_config.resolve.precision_table import PRECISIONS


def recipe(config):
    return Provenance.of(config, origin="recipe tiny")


def test_an_invalid_ramp_up_is_rejected(make):
    config = make()
    config.train.rampup_batch_size = [2, 4]
    with pytest.raises(ConfigError) as rejected:
        runtime_config_update(config, world_size=1)
    assert [problem.id for problem in rejected.value.problems] == ["TR02"]


def test_every_change_is_returned_and_resolving_is_idempotent(make):
    config = make(train=TrainingConfig(train_samples=1000, global_batch_size=30, micro_batch_size=3))
    config.scheduler.lr_warmup_iters = 0
    provenance = Provenance()
    changes = runtime_config_update(config, world_size=2, provenance=provenance)
    after = deepcopy(config)
    assert {change.field: (change.old, change.new) for change in changes} == {
        "data_parallel_size": (None, 2),
        "validation.eval_global_batch_size": (None, 30),
        "validation.eval_micro_batch_size": (None, 3),
        "train.train_iters": (None, 33),
        "scheduler.start_weight_decay": (None, 0.01),
        "scheduler.end_weight_decay": (None, 0.01),
        "optimizer.min_lr": (None, 0.0),
        "scheduler.lr_decay_steps": (None, 1000),
        "scheduler.lr_warmup_steps": (None, 0),
        "scheduler.wd_incr_steps": (None, 1000),
    }
    assert provenance.origin("train.train_iters") == "resolve: V057"
    assert runtime_config_update(config, world_size=2, provenance=provenance) == []
    assert runtime_config_update(config, world_size=2) == []
    assert config == after
    assert config.check(world_size=2) == []


def test_a_change_as_text_and_json():
    change = Change(field="train.train_iters", old=None, new=33, why="V057: ...")
    assert str(change) == "train.train_iters: None -> 33 (V057: ...)"
    assert change.to_dict() == {"field": "train.train_iters", "from": None, "to": 33, "why": "V057: ..."}


def test_precision_reaches_model_optimizer_and_wrapper(make):
    config = make(mixed_precision="bf16-mixed")
    runtime_config_update(config, world_size=1, provenance=Provenance())
    assert (config.model.bf16, config.model.params_dtype, config.model.pipeline_dtype) == (
        True,
        "bfloat16",
        "bfloat16",
    )
    assert (config.optimizer.bf16, config.optimizer.params_dtype) == (True, "bfloat16")
    assert config.ddp.grad_reduce_in_fp32 is True
    assert config.mixed_precision == "bf16-mixed"


@pytest.mark.parametrize("how", ["code", "command line", "recipe"])
def test_a_value_set_explicitly_is_not_overwritten_by_the_precision_recipe(make, how):
    config = make(mixed_precision="bf16_mixed")
    if how == "command line":
        provenance = apply_overrides(config, ["ddp.grad_reduce_in_fp32=false"], provenance=recipe(config))
    else:
        config.ddp = DistributedDataParallelConfig(grad_reduce_in_fp32=False)
        provenance = recipe(config) if how == "recipe" else None
    runtime_config_update(config, world_size=1, provenance=provenance)
    assert config.ddp.grad_reduce_in_fp32 is False
    assert config.model.bf16 is True


@pytest.mark.parametrize("name", ["recipe.yaml", "recipes/tiny.yaml", "default.yaml", "resolve.yaml"])
def test_a_file_counts_as_set_by_the_user_for_any_file_name(make, name):
    config = make(mixed_precision="bf16_mixed")
    provenance = recipe(config)
    provenance.note("ddp.grad_reduce_in_fp32", f"{name}:3")
    runtime_config_update(config, world_size=1, provenance=provenance)
    assert config.ddp.grad_reduce_in_fp32 is False
    assert not provenance.by_recipe("ddp.grad_reduce_in_fp32")


def test_a_batch_that_is_rounded_down_is_so_in_the_evaluation_too(make):
    train = TrainingConfig(
        train_iters=2, global_batch_size=32, micro_batch_size=4, decrease_batch_size_if_needed=True
    )
    config = make(train=train)
    config.scheduler.lr_warmup_iters = 0
    runtime_config_update(config, world_size=3)
    assert config.check(world_size=3) == []
    config.validation.eval_global_batch_size = 20
    assert [problem.id for problem in config.check(world_size=3)] == ["V119"]


def test_the_users_precision_overrides_fields_of_a_recipe(make):
    config = make(optimizer=OptimizerConfig(lr=1e-3, bf16=True), mixed_precision="bf16_mixed")
    provenance = apply_overrides(config, ["mixed_precision=fp16_mixed"], provenance=recipe(config))
    changes = runtime_config_update(config, world_size=1, provenance=provenance)
    assert (config.optimizer.fp16, config.optimizer.bf16) == (True, False)
    assert "optimizer.bf16" in [change.field for change in changes]


def test_a_value_that_cannot_be_kept_is_a_named_conflict(make):
    config = make(mixed_precision="bf16_mixed")
    provenance = apply_overrides(config, ["optimizer.bf16=false"], provenance=recipe(config))
    with pytest.raises(ConfigError) as caught:
        runtime_config_update(config, world_size=1, provenance=provenance)
    (problem,) = caught.value.problems
    assert problem.fields == ("optimizer.bf16", "mixed_precision")
    assert problem.origin == {"optimizer.bf16": "command line", "mixed_precision": "recipe tiny"}
    assert config.optimizer.bf16 is False


def test_none_in_a_recipe_does_not_overwrite_a_required_value(make):
    config = make(mixed_precision=MixedPrecisionConfig())
    config.model.pipeline_dtype = "float32"
    runtime_config_update(config, world_size=1, provenance=recipe(config))
    assert (config.model.params_dtype, config.optimizer.params_dtype) == ("float32", "float32")


def test_an_unknown_precision_lists_all_names(make):
    with pytest.raises(UnknownPrecisionError) as caught:
        runtime_config_update(make(mixed_precision="bf17"), world_size=1)
    assert all(name in str(caught.value) for name in PRECISIONS)


def test_fourteen_recipes_under_two_spellings():
    assert len(PRECISIONS) == 14
    for name in PRECISIONS:
        precision = get_mixed_precision_config(name)
        assert precision == get_mixed_precision_config(name.replace("_", "-"))
        precision.finalize()
        assert precision.bf16 != precision.fp16
    assert get_mixed_precision_config(precision) is precision


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("fp16_mixed", {"fp16": True, "params_dtype": "float16", "grad_reduce_in_fp32": False}),
        ("bf16_with_fp8_delayed_scaling_mixed", {"fp8_recipe": "delayed", "fp8_amax_history_len": 1024}),
        ("fp16_with_mxfp8_mixed", {"fp8": "e4m3", "reuse_grad_buf_for_mxfp8_param_ag": True}),
        (
            "nanov2_bf16_with_fp8_current_scaling_mixed",
            {"fp8_recipe": "blockwise", "num_layers_at_end_in_bf16": 2},
        ),
        ("bf16_with_fp8_subchannel_scaling_mixed", {"fp8_recipe": "blockwise", "fp8_param_gather": False}),
        (
            "nemotron_3_super_bf16_with_nvfp4_mixed",
            {"fp4": "e2m1", "fp8": None, "num_layers_at_end_in_bf16": 14},
        ),
    ],
)
def test_what_recipes_set(name, values):
    precision = get_mixed_precision_config(name)
    assert {key: getattr(precision, key) for key in values} == values


def test_a_layout_that_does_not_fit_is_rejected(make):
    config = make()
    config.model.tensor_model_parallel_size = 2
    with pytest.raises(ConfigError, match=r"V030.*3 processes"):
        runtime_config_update(config, world_size=3)


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        ({"ddp": DistributedDataParallelConfig(use_distributed_optimizer=True)}, True),
        ({"optimizer": OptimizerConfig(lr=1e-3, use_distributed_optimizer=True)}, True),
        ({}, False),
    ],
)
def test_wrapper_and_optimizer_shard_together(make, sections, expected):
    config = make(**sections)
    runtime_config_update(config, world_size=1)
    assert (config.ddp.use_distributed_optimizer, config.optimizer.use_distributed_optimizer) == (
        expected,
        expected,
    )


def test_false_set_by_the_user_overrides_true_of_a_recipe(make):
    config = make(optimizer=OptimizerConfig(lr=1e-3, use_distributed_optimizer=True))
    provenance = apply_overrides(config, ["ddp.use_distributed_optimizer=false"], provenance=recipe(config))
    runtime_config_update(config, world_size=1, provenance=provenance)
    assert config.optimizer.use_distributed_optimizer is False


def test_two_values_for_one_setting_are_a_conflict(make):
    ddp = DistributedDataParallelConfig(use_distributed_optimizer=False)
    config = make(ddp=ddp, optimizer=OptimizerConfig(lr=1e-3, use_distributed_optimizer=True))
    with pytest.raises(ConfigError, match=r"V143.*ddp.use_distributed_optimizer: is false"):
        runtime_config_update(config, world_size=1)


def test_deprecated_evaluation_fields_are_moved(make):
    config = make()
    config.train.eval_iters = 3
    runtime_config_update(config, world_size=1)
    runtime_config_update(config, world_size=1)
    assert config.validation.eval_iters == 3


def test_a_deprecated_field_that_is_set_twice_is_a_conflict(make):
    config = make()
    config.train.eval_iters = 3
    config.validation.eval_iters = 4
    with pytest.raises(ConfigError, match="V139d"):
        runtime_config_update(config, world_size=1)


def test_te_rng_tracker_and_cpu_initialisation_follow(make):
    config = make()
    config.rng.te_rng_tracker = True
    config.dist.lazy_mpu_init = True
    runtime_config_update(config, world_size=1)
    assert (config.model.use_te_rng_tracker, config.model.use_cpu_initialization) == (True, True)


def test_epochs_set_the_length_once_the_size_of_the_data_is_known(make):
    config = make(train=TrainingConfig(num_epochs=2.5, global_batch_size=32, micro_batch_size=4))
    config.scheduler.lr_warmup_iters = 0
    runtime_config_update(config, world_size=1)
    assert (config.train.train_iters, config.scheduler.lr_decay_steps) == (None, None)
    provenance = Provenance()
    known = {"training_samples": 100}
    changes = runtime_config_update(config, world_size=1, facts=known, provenance=provenance)
    assert (
        str(changes[0])
        == "train.train_iters: None -> 8 (V206: 2.5 epochs of 100 sequences / global_batch_size)"
    )
    assert (config.train.train_iters, config.scheduler.lr_decay_steps) == (8, 256)
    assert runtime_config_update(config, world_size=1, facts=known, provenance=provenance) == []
    assert runtime_config_update(config, world_size=1) == []
    assert config.train.train_iters == 8
    config.train.finalize()


def test_epochs_of_the_user_replace_the_length_of_a_recipe(make):
    config = make()
    provenance = recipe(config)
    apply_overrides(config, ["train.num_epochs=2"], provenance=provenance)
    runtime_config_update(config, world_size=1, facts={"training_samples": 100}, provenance=provenance)
    assert config.train.train_iters == -(-200 // config.train.global_batch_size)


@pytest.mark.parametrize(("facts", "part"), [({"training_samples": 80}, ", which is 20 steps"), ({}, "")])
def test_epochs_and_another_number_of_steps_are_a_conflict(make, facts, part):
    config = make(train=TrainingConfig(train_iters=5, num_epochs=2, global_batch_size=8, micro_batch_size=4))
    with pytest.raises(ConfigError) as rejected:
        runtime_config_update(config, world_size=1, facts=facts)
    [problem] = rejected.value.problems
    assert (problem.id, problem.message) == ("V056", f"is 5, and train.num_epochs is 2{part}")


def scheduled(**values):
    """A schedule of 4 steps of 8 and 9 of 16: 176 of 185 sequences of 8 tokens, and 9 that are less than a batch."""
    text = f"0:8 {32 * 8}:16"
    return TrainingConfig(train_samples=185, step_batch_size_schedule=text, micro_batch_size=2, **values)


@pytest.mark.parametrize(("batch", "evaluated"), [(None, 4), (8, 8)])
def test_samples_of_a_schedule_set_the_steps(make, batch, evaluated):
    config = make(train=scheduled(global_batch_size=batch), scheduler=SchedulerConfig())
    config.model.seq_length = 8
    config.train.finalize()
    assert config.train.train_iters is None  # the sequence length is the model's
    changes = runtime_config_update(config, world_size=2)
    [length] = [change for change in changes if change.field == "train.train_iters"]
    assert (length.new, length.why) == (
        4 + 9,
        "V057: the steps with a full batch in train_samples; the last 9 samples fill none and are left out",
    )
    assert config.train.global_batch_size == batch
    assert config.validation.eval_global_batch_size == evaluated
    assert (config.scheduler.lr_decay_steps, config.scheduler.wd_incr_steps) == (185, 185)
    assert runtime_config_update(config, world_size=2) == []
    assert config.check(world_size=2) == []


def test_samples_of_a_schedule_and_another_number_of_steps_are_a_conflict(make):
    config = make(train=scheduled(train_iters=14), scheduler=SchedulerConfig())
    config.model.seq_length = 8
    with pytest.raises(ConfigError) as rejected:
        runtime_config_update(config, world_size=2)
    [problem] = rejected.value.problems
    assert (problem.id, problem.message) == (
        "V056",
        "is 14, and train.train_samples is 185, which is 13 steps with a full batch",
    )
    config.train.train_iters = 13
    runtime_config_update(config, world_size=2)


def test_a_length_that_is_not_given_is_rejected(make):
    with pytest.raises(ConfigError, match="V056"):
        runtime_config_update(
            make(train=TrainingConfig(global_batch_size=8, micro_batch_size=2)), world_size=1
        )


def test_an_empty_decay_is_rejected(make):
    with pytest.raises(ConfigError, match="V204"):
        runtime_config_update(make(scheduler=SchedulerConfig(lr_decay_iters=0)), world_size=1)


@dataclass
class Overlap:
    """Overlap as the resolver sees it."""

    data_parallel_size: int | None = None

    def setup(self, model, optimizer, ddp):
        ddp.overlap_grad_reduce = True
        ddp.bucket_size = 100 * self.data_parallel_size


def test_overlap_is_set_up_with_the_data_parallel_size(make):
    config = make(comm_overlap=Overlap())
    changes = runtime_config_update(config, world_size=2)
    assert ("ddp.bucket_size", None, 200) in [(change.field, change.old, change.new) for change in changes]
    assert runtime_config_update(config, world_size=2) == []


def test_a_config_written_without_defaults_resolves_equally(make, kinds, tmp_path):
    config = make(mixed_precision="bf16_mixed")
    config.to_yaml(tmp_path / "run.yaml", defaults=False)
    other = kinds["Config"].from_yaml(tmp_path / "run.yaml")
    runtime_config_update(config, world_size=1)
    runtime_config_update(other, world_size=1)
    assert other == config
