"""Rules on process groups, sharding and random numbers."""

from __future__ import annotations

from mb_schema.rule_kinds import SET, assigned, ddp_rule, dist_rule, excludes, in_range, requires, shown
from mb_schema.rules import Rule, rules_in

_RECORDER = {
    "flight_recorder_trace_buffer_size": 2000,
    "flight_recorder_dump_on_timeout": True,
    "flight_recorder_include_stack_trace": False,
    "flight_recorder_include_only_active": True,
    "flight_recorder_extra_dump_on_exec": True,
}
"""Settings of NCCL's flight recorder, with their defaults. It is active if it has a path."""


def _two_values_of_one_setting(id: str, name: str) -> Rule:
    def differ(ours, theirs):
        if ours is None or theirs is None or ours == theirs:
            return None
        return f"is {shown(ours)} in ddp, but {shown(theirs)} in optimizer"

    return ddp_rule(
        id,
        paths={"ours": f"ddp.{name}", "theirs": f"optimizer.{name}"},
        why="the wrapper and the optimizer share this setting; resolving makes both equal",
        fix="Set both to the same value.",
        fails={"ours": True, "theirs": False},
        passes={"theirs": True},
        severity="warning",
    )(differ)


@ddp_rule(
    "PG03",
    why="only sharded parameters are all-gathered",
    fix="Set ddp.use_distributed_optimizer=true or ddp.overlap_param_gather=false.",
    fails={"overlap_param_gather": True},
    passes={"use_distributed_optimizer": True},
)
def _gather_of_unsharded_parameters(
    overlap_param_gather,
    use_distributed_optimizer,
    optimizer__use_distributed_optimizer,
    use_megatron_fsdp,
    dist__use_megatron_fsdp,
):
    sharded = (
        use_distributed_optimizer
        or optimizer__use_distributed_optimizer
        or use_megatron_fsdp
        or dist__use_megatron_fsdp
    )
    return "requires use_distributed_optimizer" if overlap_param_gather and not sharded else None


@dist_rule(
    "PG05",
    others=_RECORDER,
    why="the flight recorder is active only with a dump path",
    fix="Set dist.flight_recorder_dump_path, or leave the other settings of the flight recorder unset.",
    fails={"flight_recorder_include_stack_trace": True},
    passes={"flight_recorder_dump_path": "/tmp/trace_"},
)
def _flight_recorder_without_path(flight_recorder_dump_path, **settings):
    changed = {
        name: value for name, value in settings.items() if value is not None and value != _RECORDER[name]
    }
    if not changed or flight_recorder_dump_path:
        return None
    return f"is not set, so that {assigned(changed)} would have no effect"


@dist_rule(
    "PG06",
    why="a collective with a timeout of 0 fails immediately",
    fix="Set minutes and seconds to at least 1, or dist.distributed_timeout_seconds_after_init=null.",
    fails={"distributed_timeout_minutes": 0, "distributed_timeout_seconds_after_init": -1},
    passes={"distributed_timeout_minutes": 1, "distributed_timeout_seconds_after_init": 1},
)
def _no_time_for_collectives(distributed_timeout_minutes, distributed_timeout_seconds_after_init):
    timeouts = {
        "distributed_timeout_minutes": distributed_timeout_minutes,
        "distributed_timeout_seconds_after_init": distributed_timeout_seconds_after_init,
    }
    short = {name: value for name, value in timeouts.items() if value is not None and value < 1}
    return f"must be at least 1 ({assigned(short)})" if short else None


RULES: tuple[Rule, ...] = (
    excludes(
        "V134",
        {"dist.use_decentralized_pg": True, "dist.use_gloo_process_groups": True},
        why="explicitly passed process groups have no gloo counterparts",
        fix="Set dist.use_gloo_process_groups=false.",
    ),
    requires(
        "PG01",
        {"dist.eval_context_parallel_size": SET},
        {"dist.use_decentralized_pg": True},
        why="the evaluation then uses separate process groups",
        fix="Set dist.use_decentralized_pg=true or dist.eval_context_parallel_size=null.",
        fails={"dist.eval_context_parallel_size": 2},
    ),
    requires(
        "PG02",
        {"dist.sharp_enabled_group": SET},
        {"dist.use_sharp": True},
        why="it selects the group with in-network reduction",
        fix="Set dist.use_sharp=true or dist.sharp_enabled_group=null.",
        fails={"dist.sharp_enabled_group": "dp"},
    ),
    *rules_in(globals()),
    requires(
        "PG04",
        {"ddp.overlap_param_gather": True},
        {"ddp.overlap_grad_reduce": True},
        why="the all-gather uses the buckets of the overlapped reduction",
        fix="Set ddp.overlap_grad_reduce=true or ddp.overlap_param_gather=false.",
    ),
    _two_values_of_one_setting("V143", "use_distributed_optimizer"),
    _two_values_of_one_setting("V144", "overlap_param_gather"),
    in_range(
        "V240",
        "rng.seed",
        1,
        why="Megatron Core rejects other seeds",
    ),
    excludes(
        "V157",
        {"dist.use_decentralized_pg": True, "model.hierarchical_context_parallel_sizes": True},
        why="Megatron Core passes no groups for the levels of the hierarchy",
        fix="Set dist.use_decentralized_pg=false or model.hierarchical_context_parallel_sizes=null.",
        fails={"model.hierarchical_context_parallel_sizes": [2, 2]},
    ),
)
