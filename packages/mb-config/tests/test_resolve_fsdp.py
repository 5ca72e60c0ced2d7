"""Resolving for Megatron-FSDP: required fields are set; values of the user are never overwritten."""

import pytest

from mb_config import (
    ConfigError,
    DistributedDataParallelConfig,
    DistributedInitConfig,
    OptimizerConfig,
    runtime_config_update,
)


def resolve(config):
    return {
        change.field: (change.new, change.why[:4]) for change in runtime_config_update(config, world_size=1)
    }


ALWAYS = {
    "dist.use_megatron_fsdp": (True, "V170"),
    "ddp.use_distributed_optimizer": (True, "V171"),
    "optimizer.use_distributed_optimizer": (True, "V171"),
}


def of_fsdp(changes):
    return {field: value for field, value in changes.items() if value[1].startswith("V17")}


def test_one_field_sets_both_and_the_distributed_optimizer(make):
    config = make(ddp=DistributedDataParallelConfig(use_megatron_fsdp=True))
    assert of_fsdp(resolve(config)) == ALWAYS
    assert resolve(config) == {}


def test_the_field_of_dist_does_the_same(make):
    config = make(dist=DistributedInitConfig(use_megatron_fsdp=True))
    assert resolve(config)["ddp.use_megatron_fsdp"] == (True, "V170")


def test_required_fields_are_set(make):
    ddp = DistributedDataParallelConfig(use_megatron_fsdp=True, nccl_ub=True)
    optimizer = OptimizerConfig(lr=1e-3, use_precision_aware_optimizer=True)
    assert of_fsdp(resolve(make(ddp=ddp, optimizer=optimizer))) == {
        **ALWAYS,
        "ddp.megatron_fsdp_use_decoupled_grad": (True, "V172"),
        "ddp.fsdp_manual_registration": (True, "V177"),
    }


def test_values_of_a_recipe_are_replaced_and_resolving_is_idempotent(make):
    ddp = DistributedDataParallelConfig(use_megatron_fsdp=True)
    config = make(ddp=ddp, mixed_precision="bf16_with_mxfp8_mixed")
    assert "ddp.reuse_grad_buf_for_mxfp8_param_ag" not in resolve(config)
    assert (ddp.fp8_param_gather, ddp.reuse_grad_buf_for_mxfp8_param_ag) == (True, False)
    assert resolve(config) == {}


@pytest.mark.parametrize(
    ("values", "rule"),
    [
        ({"use_distributed_optimizer": False}, "V171"),
        ({"average_in_collective": True}, "V173"),
        ({"reuse_grad_buf_for_mxfp8_param_ag": True, "fp8_param_gather": True}, "V174"),
        ({"nccl_ub": True, "fsdp_manual_registration": False}, "V177"),
    ],
)
def test_a_conflicting_value_of_the_user_is_a_conflict(make, values, rule):
    config = make(ddp=DistributedDataParallelConfig(use_megatron_fsdp=True, **values))
    with pytest.raises(ConfigError) as caught:
        runtime_config_update(config, world_size=1)
    assert [problem.id for problem in caught.value.problems] == [rule]
    assert {name: getattr(config.ddp, name) for name in values} == values


def test_two_switches_that_disagree_are_a_conflict(make):
    config = make(
        ddp=DistributedDataParallelConfig(use_megatron_fsdp=False),
        dist=DistributedInitConfig(use_megatron_fsdp=True),
    )
    with pytest.raises(
        ConfigError, match=r"ddp.use_megatron_fsdp: is false, but dist.use_megatron_fsdp is true"
    ):
        runtime_config_update(config, world_size=1)


def test_symmetric_registration_decides_over_the_average(make):
    ddp = DistributedDataParallelConfig(
        use_megatron_fsdp=True, average_in_collective=True, disable_symmetric_registration=True
    )
    resolve(make(ddp=ddp))
    assert ddp.average_in_collective is True
