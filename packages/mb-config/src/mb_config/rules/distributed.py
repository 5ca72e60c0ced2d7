"""Rules on process groups, sharding and random numbers."""

from __future__ import annotations

from functools import partial

from mb_config.rules.formatting import format_assignments, format_value
from mb_config.rules.fsdp import FSDP_SWITCHES
from mb_schema.rule_kinds import SET, excludes, in_range, requires, rule, section_rule
from mb_schema.rules import Rule

ddp_rule = partial(section_rule, "ddp")

_RECORDER = {
    "flight_recorder_trace_buffer_size": 2000,
    "flight_recorder_dump_on_timeout": True,
    "flight_recorder_include_stack_trace": False,
    "flight_recorder_include_only_active": True,
    "flight_recorder_extra_dump_on_exec": True,
}
"""Settings of NCCL's flight recorder, which is active if it has a path."""


_TIME_OUTS = ("dist.distributed_timeout_minutes", "dist.distributed_timeout_seconds_after_init")


def _differ(ours, theirs):
    if ours is None or theirs is None or ours == theirs:
        return None
    return f"is {format_value(ours)} in ddp, but {format_value(theirs)} in optimizer"


def _recorder(path: str | None, *settings: object) -> str | None:
    changed = [
        f"{name}={format_value(value)}"
        for (name, default), value in zip(_RECORDER.items(), settings, strict=True)
        if value is not None and value != default
    ]
    return f"is not set, so that {', '.join(changed)} would have no effect" if changed and not path else None


def _time_outs(*values: int | None) -> str | None:
    short = format_assignments(_TIME_OUTS, values, where=lambda value: value is not None and value < 1)
    return f"must be at least 1 ({short})" if short else None


def _needs(on: object, needed: object, name: str) -> str | None:
    return f"requires {name}" if on and not needed else None


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
    Rule(
        id="PG03",
        fields=(
            "ddp.overlap_param_gather",
            "ddp.use_distributed_optimizer",
            "optimizer.use_distributed_optimizer",
            "optimizer.use_layer_wise_distributed_optimizer",
            *FSDP_SWITCHES,
        ),
        test=lambda on, *sharded: _needs(on, any(sharded), "use_distributed_optimizer"),
        why="only sharded parameters are all-gathered",
        fix="Set ddp.use_distributed_optimizer=true or ddp.overlap_param_gather=false.",
        fails={"ddp.overlap_param_gather": True},
        passes={"ddp.overlap_param_gather": True, "ddp.use_distributed_optimizer": True},
    ),
    requires(
        "PG04",
        {"ddp.overlap_param_gather": True},
        {"ddp.overlap_grad_reduce": True},
        why="the all-gather uses the buckets of the overlapped reduction",
        fix="Set ddp.overlap_grad_reduce=true or ddp.overlap_param_gather=false.",
    ),
    Rule(
        id="PG05",
        fields=("dist.flight_recorder_dump_path", *(f"dist.{name}" for name in _RECORDER)),
        test=_recorder,
        why="the flight recorder is active only with a dump path",
        fix="Set dist.flight_recorder_dump_path, or leave the other settings of the flight recorder unset.",
        fails={
            "dist.flight_recorder_trace_buffer_size": 100,
            "dist.flight_recorder_dump_on_timeout": False,
            "dist.flight_recorder_include_stack_trace": True,
            "dist.flight_recorder_include_only_active": False,
            "dist.flight_recorder_extra_dump_on_exec": False,
        },
        passes={
            "dist.flight_recorder_dump_path": "/tmp/trace_",
            "dist.flight_recorder_include_stack_trace": True,
        },
    ),
    rule(
        "PG06",
        _TIME_OUTS,
        _time_outs,
        why="a collective with a timeout of 0 fails immediately",
        fix="Set minutes and seconds to at least 1, or dist.distributed_timeout_seconds_after_init=null.",
        fails=(0, -1),
        passes=(1, 1),
    ),
    ddp_rule(
        "V143",
        paths={"ours": "ddp.use_distributed_optimizer", "theirs": "optimizer.use_distributed_optimizer"},
        why="the wrapper and the optimizer share this setting; resolving makes both equal",
        fix="Set both to the same value.",
        fails={"ours": True, "theirs": False},
        passes={"theirs": True},
        severity="warning",
    )(_differ),
    ddp_rule(
        "V144",
        paths={"ours": "ddp.overlap_param_gather", "theirs": "optimizer.overlap_param_gather"},
        why="the wrapper and the optimizer share this setting; resolving makes both equal",
        fix="Set both to the same value.",
        fails={"ours": True, "theirs": False},
        passes={"theirs": True},
        severity="warning",
    )(_differ),
    in_range(
        "V240",
        "rng.seed",
        1,
        why="Megatron Core rejects other seeds",
        fix="Set a positive rng.seed.",
        fails=0,
        passes=1234,
    ),
    excludes(
        "V157",
        {"dist.use_decentralized_pg": True, "model.hierarchical_context_parallel_sizes": True},
        why="Megatron Core passes no groups for the levels of the hierarchy",
        fix="Set dist.use_decentralized_pg=false or model.hierarchical_context_parallel_sizes=null.",
        fails={"model.hierarchical_context_parallel_sizes": [2, 2]},
    ),
)
