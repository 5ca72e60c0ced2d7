"""Rules on Megatron-FSDP. Resolving sets the fields that it requires (V170 to V174, V177)."""

from __future__ import annotations

from collections.abc import Mapping

from mb_schema.rule_kinds import requires, rule, within
from mb_schema.rules import Rule

FSDP_SWITCHES = ("ddp.use_megatron_fsdp", "dist.use_megatron_fsdp")
"""Fields that enable Megatron-FSDP. One is sufficient: resolving sets the other one."""

STRATEGIES = ("no_shard", "optim", "optim_grads", "optim_grads_params")
_OUTER = ("no_shard", "optim")


def _single_queue(ddp: bool | None, dist: bool | None, env: Mapping[str, str]) -> str | None:
    if not (ddp or dist) or env.get("CUDA_DEVICE_MAX_CONNECTIONS") != "1":
        return None
    return "cannot be combined with CUDA_DEVICE_MAX_CONNECTIONS=1"


def _compared_weights_are_sharded(strategy: str | None, interval: int | None, *on: bool | None) -> str | None:
    if not any(on) or strategy != "optim_grads_params" or not interval:
        return None
    return f"is {strategy}, but the comparison of weights every {interval} steps requires unsharded weights"


def _other_rank_order(mapping: bool | None, *on: bool | None) -> str | None:
    return "cannot be combined with Megatron-FSDP" if mapping and any(on) else None


def _unknown_fsdp_version(version: object) -> str | None:
    return None if version in (None, 1) else f"Megatron-FSDP has no version {version}"


def _strategies(inner: str | None, outer: str | None) -> str | None:
    if inner is not None and inner not in STRATEGIES:
        return f"{inner!r} is not one of {', '.join(STRATEGIES)}"
    if outer is not None and outer not in _OUTER:
        return f"outer_dp_sharding_strategy={outer!r} is not one of {', '.join(_OUTER)}"
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
    Rule(
        id="V176",
        fields=(*FSDP_SWITCHES, "facts.env"),
        test=_single_queue,
        why="with one queue the parameter all-gather cannot overlap with computation",
        fix="Unset CUDA_DEVICE_MAX_CONNECTIONS in the shell and in env_vars, or set it to a different value.",
        fails={"ddp.use_megatron_fsdp": True, "facts.env": {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}},
        passes={"ddp.use_megatron_fsdp": True, "facts.env": {"CUDA_DEVICE_MAX_CONNECTIONS": "8"}},
    ),
    requires(
        "V177",
        {"ddp.fsdp_manual_registration": True},
        {"ddp.nccl_ub": True},
        why="it registers the buffers of nccl_ub",
        fix="Set ddp.nccl_ub=true or ddp.fsdp_manual_registration=false.",
        fails=(True,),
        passes=(True, True),
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
    rule(
        "V180",
        "ddp.megatron_fsdp_version",
        _unknown_fsdp_version,
        why="Megatron Core 0.19 has one version, which is not configurable",
        fix="Remove ddp.megatron_fsdp_version.",
        fails=(2,),
        passes=(None,),
    ),
    rule(
        "F01",
        within("ddp", "data_parallel_sharding_strategy outer_dp_sharding_strategy"),
        _strategies,
        why="Megatron-FSDP has no other strategy",
        fix="Use a name from the list.",
        fails=("full",),
        passes=("optim_grads_params",),
    ),
)
