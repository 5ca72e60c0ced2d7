"""Edge cases of individual rules."""

import pytest

from mb_config import RULES, MixedPrecisionConfig, check
from mb_config.resolve.precision_table import precision_field

BY_ID = {rule.id: rule for rule in RULES}


def message_of(name, values):
    rule = BY_ID[name]
    return rule.message(values)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_missing_values_raise_no_exception(rule):
    for example in (rule.fails, rule.passes):
        for path in [path for path in rule.fields if "." in path and not path.startswith("facts.")]:
            filled = {"facts.world_size": 8, "facts.env": {}, **example, path: None}
            rule.message(filled)


@pytest.mark.parametrize(
    ("gpu", "rejected"),
    [
        ("a100", {"fp8", "blockwise", "mxfp8", "nvfp4"}),
        ("l40s", {"blockwise", "mxfp8", "nvfp4"}),
        ("h100", {"mxfp8", "nvfp4"}),
        ("b300", set()),
    ],
)
def test_formats_by_generation(gpu, rejected):
    recipes = {
        "bf16": "bf16_mixed",
        "fp8": "bf16_with_fp8_current_scaling_mixed",
        "blockwise": "bf16-with-fp8-subchannel-scaling-mixed",
        "mxfp8": "bf16_with_mxfp8_mixed",
        "nvfp4": "bf16_with_nvfp4_mixed",
    }
    found = {
        name
        for name, recipe in recipes.items()
        if check({"mixed_precision": recipe}, [BY_ID["H02"]], facts={"gpu": gpu})
    }
    assert found == rejected


def test_a_field_of_a_recipe_that_is_a_name_a_section_or_a_mapping():
    assert precision_field("bf16-with-nvfp4-mixed", "fp4") == "e2m1"
    assert precision_field(MixedPrecisionConfig(fp4="e2m1"), "fp4") == "e2m1"
    assert precision_field({"fp4": "e2m1"}, "fp4") == "e2m1"
    assert precision_field("no such recipe", "fp4") is None


def test_f01_the_outer_strategy():
    assert message_of("F01", {"ddp.outer_dp_sharding_strategy": "optim_grads"}) == (
        "outer_dp_sharding_strategy='optim_grads' is not one of no_shard, optim"
    )


def test_v122a_megatron_fsdp_requires_no_shared_buffer():
    values = {"ddp.fp8_param_gather": True, "model.fp8": "e4m3", "model.fp8_recipe": "mxfp8"}
    assert message_of("V122a", values) is not None
    assert message_of("V122a", {**values, "dist.use_megatron_fsdp": True}) is None


@pytest.mark.parametrize("rampup", [[8, 8], [0, 8, 8], "8 8 8"])
def test_tr02_a_ramp_has_three_positive_numbers(rampup):
    assert "must be three positive numbers" in message_of("TR02", {"train.rampup_batch_size": rampup})


def test_tr02_a_ramp_has_steps_that_can_be_counted():
    values = {"train.rampup_batch_size": [8, 8, 9 * 10**10], "train.global_batch_size": 8 * 10**9}
    assert message_of("TR02", values) == "has 999,999,999 steps, more than 10,000"


@pytest.mark.parametrize("name", ["", "  ", "A=B", 3])
def test_v001_names_of_variables(name):
    assert message_of("V001", {"env_vars": {name: "1"}}) == f"{name!r} is not the name of a variable"


def test_v051e_state_can_be_sharded_by_the_wrapper_or_by_fsdp():
    aware = {"optimizer.use_precision_aware_optimizer": True}
    assert message_of("V051e", aware) == "requires use_distributed_optimizer"
    for path in ("ddp.use_distributed_optimizer", "ddp.use_megatron_fsdp", "dist.use_megatron_fsdp"):
        assert message_of("V051e", {**aware, path: True}) is None


def test_dt02_names_the_field_with_the_unknown_dtype():
    section = {"params_dtype": "bfloat16", "exp_avg_dtype": "fp8", "exp_avg_sq_dtype": "fp16"}
    (problem,) = check({"optimizer": section}, [rule for rule in RULES if rule.id == "DT02"])
    assert problem.message.startswith("exp_avg_dtype=fp8, exp_avg_sq_dtype=fp16: not one of float64, ")
