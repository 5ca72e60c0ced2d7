"""Rules on Megatron-FSDP. Resolving sets the fields that it requires (V170 to V174, V177)."""

from __future__ import annotations

from functools import partial

from mb_schema.rule_kinds import requires, rule, section_rule
from mb_schema.rules import Rule

ddp_rule = partial(section_rule, "ddp")

FSDP_SWITCHES = ("ddp.use_megatron_fsdp", "dist.use_megatron_fsdp")
"""Fields that enable Megatron-FSDP. One is sufficient: resolving sets the other one."""

STRATEGIES = ("no_shard", "optim", "optim_grads", "optim_grads_params")
_OUTER = ("no_shard", "optim")


@ddp_rule(
    "V176",
    why="with one queue the parameter all-gather cannot overlap with computation",
    fix="Unset CUDA_DEVICE_MAX_CONNECTIONS in the shell and in env_vars, or set it to a different value.",
    fails={"use_megatron_fsdp": True, "env": {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}},
    passes={"env": {"CUDA_DEVICE_MAX_CONNECTIONS": "8"}},
)
def _single_queue(use_megatron_fsdp, dist__use_megatron_fsdp, *, env):
    if not (use_megatron_fsdp or dist__use_megatron_fsdp) or env.get("CUDA_DEVICE_MAX_CONNECTIONS") != "1":
        return None
    return "cannot be combined with CUDA_DEVICE_MAX_CONNECTIONS=1"


def _compared_weights_are_sharded(strategy: str | None, interval: int | None, *on: bool | None) -> str | None:
    if not any(on) or strategy != "optim_grads_params" or not interval:
        return None
    return f"is {strategy}, but the comparison of weights every {interval} steps requires unsharded weights"


def _other_rank_order(mapping: bool | None, *on: bool | None) -> str | None:
    return "cannot be combined with Megatron-FSDP" if mapping and any(on) else None


@ddp_rule(
    "V180",
    why="Megatron Core 0.19 has one version, which is not configurable",
    fix="Remove ddp.megatron_fsdp_version.",
    fails={"megatron_fsdp_version": 2},
    passes={"megatron_fsdp_version": None},
)
def _unknown_fsdp_version(megatron_fsdp_version):
    return (
        None
        if megatron_fsdp_version in (None, 1)
        else f"Megatron-FSDP has no version {megatron_fsdp_version}"
    )


@ddp_rule(
    "F01",
    why="Megatron-FSDP has no other strategy",
    fix="Use a name from the list.",
    fails={"data_parallel_sharding_strategy": "full"},
    passes={"data_parallel_sharding_strategy": "optim_grads_params"},
)
def _strategies(data_parallel_sharding_strategy, outer_dp_sharding_strategy):
    if data_parallel_sharding_strategy is not None and data_parallel_sharding_strategy not in STRATEGIES:
        return f"{data_parallel_sharding_strategy!r} is not one of {', '.join(STRATEGIES)}"
    if outer_dp_sharding_strategy is not None and outer_dp_sharding_strategy not in _OUTER:
        return f"outer_dp_sharding_strategy={outer_dp_sharding_strategy!r} is not one of {', '.join(_OUTER)}"
    return None


RULES: tuple[Rule, ...] = (
    Rule(
        id="V120",
        fields=("dist.use_torch_fsdp2", *FSDP_SWITCHES),
        test=lambda torchs, *on: "cannot be combined with use_megatron_fsdp" if torchs and any(on) else None,
        why="each parameter is sharded by one of them",
        fix="Set one of them to false.",
        fails={"dist.use_torch_fsdp2": True, "dist.use_megatron_fsdp": True},
        passes={"dist.use_megatron_fsdp": True},
    ),
    _single_queue,
    requires(
        "V177",
        {"ddp.fsdp_manual_registration": True},
        {"ddp.nccl_ub": True},
        why="it registers the buffers of nccl_ub",
        fix="Set ddp.nccl_ub=true or ddp.fsdp_manual_registration=false.",
    ),
    rule(
        "V178",
        (
            "ddp.data_parallel_sharding_strategy",
            "train.check_weight_hash_across_dp_replicas_interval",
            *FSDP_SWITCHES,
        ),
        _compared_weights_are_sharded,
        why="no rank holds the complete weights",
        fix="Set train.check_weight_hash_across_dp_replicas_interval=null.",
        fails=("optim_grads_params", 100, True),
        passes=("optim_grads", 100, True),
    ),
    rule(
        "V179",
        ("dist.use_tp_pp_dp_mapping", *FSDP_SWITCHES),
        _other_rank_order,
        why="its device mesh orders the ranks tp-cp-ep-dp-pp",
        fix="Set dist.use_tp_pp_dp_mapping=false.",
        fails=(True, True),
        passes=(True,),
    ),
    _unknown_fsdp_version,
    _strategies,
)
