"""Rules on Megatron-FSDP. Resolving sets the fields that it requires (V170 to V174, V177)."""

from __future__ import annotations

from mb_schema.rule_kinds import ddp_rule, dist_rule, requires, unsupported
from mb_schema.rules import Rule, rules_in

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


@ddp_rule(
    "V178",
    why="no rank holds the complete weights",
    fix="Set train.check_weight_hash_across_dp_replicas_interval=null.",
    fails={
        "data_parallel_sharding_strategy": "optim_grads_params",
        "train__check_weight_hash_across_dp_replicas_interval": 100,
        "use_megatron_fsdp": True,
    },
    passes={"data_parallel_sharding_strategy": "optim_grads"},
)
def _compared_weights_are_sharded(
    data_parallel_sharding_strategy,
    train__check_weight_hash_across_dp_replicas_interval,
    use_megatron_fsdp,
    dist__use_megatron_fsdp,
):
    interval = train__check_weight_hash_across_dp_replicas_interval
    if (
        not (use_megatron_fsdp or dist__use_megatron_fsdp)
        or data_parallel_sharding_strategy != "optim_grads_params"
        or not interval
    ):
        return None
    return (
        f"is {data_parallel_sharding_strategy}, but the comparison of weights every {interval} steps requires "
        "unsharded weights"
    )


@dist_rule(
    "V179",
    why="its device mesh orders the ranks tp-cp-ep-dp-pp",
    fix="Set dist.use_tp_pp_dp_mapping=false.",
    fails={"use_tp_pp_dp_mapping": True, "ddp__use_megatron_fsdp": True},
    passes={"ddp__use_megatron_fsdp": None},
)
def _other_rank_order(use_tp_pp_dp_mapping, ddp__use_megatron_fsdp, use_megatron_fsdp):
    if use_tp_pp_dp_mapping and (ddp__use_megatron_fsdp or use_megatron_fsdp):
        return "cannot be combined with Megatron-FSDP"
    return None


@dist_rule(
    "V120",
    why="each parameter is sharded by one of them",
    fix="Set one of them to false.",
    fails={"use_torch_fsdp2": True, "use_megatron_fsdp": True},
    passes={"use_torch_fsdp2": None},
)
def _two_kinds_of_sharding(use_torch_fsdp2, ddp__use_megatron_fsdp, use_megatron_fsdp):
    if use_torch_fsdp2 and (ddp__use_megatron_fsdp or use_megatron_fsdp):
        return "cannot be combined with use_megatron_fsdp"
    return None


@ddp_rule(
    "F01",
    why="Megatron-FSDP has no other strategy",
    fix="Use a name from the list.",
    fails={"data_parallel_sharding_strategy": "full"},
    passes={"data_parallel_sharding_strategy": "optim_grads_params"},
)
def _unknown_strategy(data_parallel_sharding_strategy, outer_dp_sharding_strategy):
    if data_parallel_sharding_strategy is not None and data_parallel_sharding_strategy not in STRATEGIES:
        return f"{data_parallel_sharding_strategy!r} is not one of {', '.join(STRATEGIES)}"
    if outer_dp_sharding_strategy is not None and outer_dp_sharding_strategy not in _OUTER:
        return f"outer_dp_sharding_strategy={outer_dp_sharding_strategy!r} is not one of {', '.join(_OUTER)}"
    return None


RULES: tuple[Rule, ...] = (
    *rules_in(globals()),
    requires(
        "V177",
        {"ddp.fsdp_manual_registration": True},
        {"ddp.nccl_ub": True},
        why="it registers the buffers of nccl_ub",
        fix="Set ddp.nccl_ub=true or ddp.fsdp_manual_registration=false.",
    ),
    unsupported(
        "V180",
        "ddp.megatron_fsdp_version",
        1,
        fails=2,
        why="Megatron Core 0.19 has one version of Megatron-FSDP, which is not configurable",
        fix="Remove ddp.megatron_fsdp_version.",
    ),
)
