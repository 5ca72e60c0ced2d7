"""Rules on tensor, pipeline, expert and data parallelism."""

from __future__ import annotations

from math import prod

from mb_config.rules.formatting import format_assignments
from mb_schema.rule_kinds import rule, within
from mb_schema.rules import Rule

SIZES = (
    "model.tensor_model_parallel_size",
    "model.pipeline_model_parallel_size",
    "model.context_parallel_size",
)

_ALL_SIZES = (
    *SIZES,
    "model.expert_model_parallel_size",
    "model.expert_tensor_parallel_size",
    "model.virtual_pipeline_model_parallel_size",
)


def data_parallel_size(world: int, tp: int | None, pp: int | None, cp: int | None) -> int | None:
    """Return the number of model replicas, world / (tp x pp x cp), or None if that is not an integer of at least 1.

    A size of None counts as 1. Expert parallelism is not a factor, because it uses the data-parallel ranks.
    """
    sizes = [1 if size is None else size for size in (tp, pp, cp)]
    if min(sizes) < 1 or world < 1 or world % prod(sizes) != 0:
        return None
    return world // prod(sizes)


def _processes(world: int) -> str:
    return "1 process is" if world == 1 else f"{world} processes are"


def _v030(world: int, tp: int | None, pp: int | None, cp: int | None) -> str | None:
    if data_parallel_size(world, tp, pp, cp) is not None:
        return None
    return f"{_processes(world)} not a multiple of tp x pp x cp = {tp or 1} x {pp or 1} x {cp or 1}"


def _positive(*sizes: int | None) -> str | None:
    wrong = format_assignments(_ALL_SIZES, sizes, where=_below_one)
    return f"parallel sizes must be at least 1 ({wrong})" if wrong else None


def _below_one(size: int | None) -> bool:
    return size is not None and size < 1


def _divides(what: str, number: int | None, size: int | None, name: str) -> str | None:
    if number is None or not size or size < 1 or number % size == 0:
        return None
    return f"{number} {what} cannot be split into {name}={size} equal parts"


def _groups(groups: int | None, tp: int | None) -> str | None:
    if not groups or not tp or groups % tp == 0 or tp % groups == 0:
        return None
    return f"{groups} query groups and tp={tp}: neither is a multiple of the other"


def _heads_per_group(groups: int | None, heads: int | None) -> str | None:
    if not groups or heads is None or heads % groups == 0:
        return None
    return f"{heads} attention heads cannot be divided equally over {groups} query groups"


def _layers(layers: int | None, pp: int | None, vp: int | None, *uneven: object) -> str | None:
    stages = (pp or 1) * (vp or 1)
    if layers is None or any(uneven) or stages < 1 or layers % stages == 0:
        return None
    return f"{layers} layers cannot be split into pp x vp = {pp or 1} x {vp or 1} equal parts"


def _sequence_parallel(on: bool | None, tp: int | None) -> str | None:
    return "requires tensor parallelism (tp=1)" if on and (tp or 1) == 1 else None


def _virtual(vp: int | None, pp: int | None) -> str | None:
    return f"vp={vp} requires pipeline parallelism (pp=1)" if vp and vp > 1 and (pp or 1) == 1 else None


def _experts(experts: int | None, ep: int | None) -> str | None:
    if not ep or ep < 2:
        return None
    if not experts:
        return f"ep={ep} requires a model with experts (num_moe_experts={experts or 'null'})"
    return _divides("experts", experts, ep, "ep")


def _expert_world(ep: int | None, etp: int | None, tp: int | None, pp: int | None, world: int) -> str | None:
    sizes = [ep or 1, etp or tp or 1, pp or 1]
    as_dense = (ep or 1) == 1 and sizes[1] == (tp or 1)  # reported by V030
    if as_dense or world % prod(sizes) == 0:
        return None
    return f"{_processes(world)} not a multiple of ep x etp x pp = {' x '.join(map(str, sizes))}"


def _expert_sequence(experts: int | None, tp: int | None, on: bool | None) -> str | None:
    return (
        f"{experts} experts with tp={tp} require sequence_parallel"
        if experts and (tp or 1) > 1 and not on
        else None
    )


_UNEVEN = (
    "model.num_layers_in_first_pipeline_stage",
    "model.num_layers_in_last_pipeline_stage",
    "model.pipeline_model_parallel_layout",
    "model.account_for_embedding_in_pipeline_split",
    "model.account_for_loss_in_pipeline_split",
)

RULES: tuple[Rule, ...] = (
    Rule(
        id="V030",
        fields=("facts.world_size", *SIZES),
        test=_v030,
        why="each replica of the model uses tp x pp x cp processes",
        fix="Change the number of processes or the parallel sizes.",
        fails={"facts.world_size": 12, SIZES[0]: 2, SIZES[1]: 2, SIZES[2]: 2},
        passes={"facts.world_size": 16, SIZES[0]: 2, SIZES[1]: 2, SIZES[2]: 2},
    ),
    Rule(
        id="P01",
        fields=_ALL_SIZES,
        test=_positive,
        why="it is a number of processes",
        fix="Set it to 1 to disable this kind of parallelism.",
        fails={SIZES[0]: 0},
        passes={SIZES[0]: 1},
    ),
    rule(
        "P02",
        ("model.num_attention_heads", SIZES[0]),
        lambda heads, tp: _divides("attention heads", heads, tp, "tp"),
        why="tensor parallelism assigns entire heads to each rank",
        fix="Change model.num_attention_heads or model.tensor_model_parallel_size.",
        fails=(6, 4),
        passes=(8, 4),
    ),
    rule(
        "P03",
        ("model.num_query_groups", SIZES[0]),
        _groups,
        why="keys and values are either split over the ranks or replicated evenly",
        fix="Change model.num_query_groups or model.tensor_model_parallel_size.",
        fails=(6, 4),
        passes=(2, 4),
    ),
    rule(
        "P04",
        within("model", "num_query_groups num_attention_heads"),
        _heads_per_group,
        why="each query group shares one key and value head",
        fix="Make model.num_attention_heads a multiple of model.num_query_groups.",
        fails=(3, 8),
        passes=(2, 8),
    ),
    Rule(
        id="P05",
        fields=("model.num_layers", SIZES[1], "model.virtual_pipeline_model_parallel_size", *_UNEVEN),
        test=_layers,
        why="each pipeline stage, including virtual ones, has the same number of layers",
        fix="Change model.num_layers or the pipeline sizes, or set an uneven layout.",
        fails={"model.num_layers": 6, SIZES[1]: 4},
        passes={"model.num_layers": 8, SIZES[1]: 2, "model.virtual_pipeline_model_parallel_size": 2},
    ),
    rule(
        "P06",
        ("model.sequence_parallel", SIZES[0]),
        _sequence_parallel,
        why="it scatters the sequence over the tensor-parallel ranks",
        fix="Set model.sequence_parallel=false or model.tensor_model_parallel_size above 1.",
        fails=(True, 1),
        passes=(True, 2),
    ),
    rule(
        "P07",
        ("model.virtual_pipeline_model_parallel_size", SIZES[1]),
        _virtual,
        why="virtual stages are interleaved on pipeline stages",
        fix="Set model.virtual_pipeline_model_parallel_size=null or model.pipeline_model_parallel_size above 1.",
        fails=(2, 1),
        passes=(2, 2),
    ),
    rule(
        "P08",
        within("model", "num_moe_experts expert_model_parallel_size"),
        _experts,
        why="expert parallelism assigns entire experts to each rank",
        fix="Change model.num_moe_experts or model.expert_model_parallel_size.",
        fails=(6, 4),
        passes=(8, 4),
    ),
    Rule(
        id="P09",
        fields=(
            "model.expert_model_parallel_size",
            "model.expert_tensor_parallel_size",
            SIZES[0],
            SIZES[1],
            "facts.world_size",
        ),
        test=_expert_world,
        why="each replica of the experts uses ep x etp x pp processes",
        fix="Change the number of processes or the expert-parallel sizes.",
        fails={"model.expert_model_parallel_size": 8, "facts.world_size": 4},
        passes={"model.expert_model_parallel_size": 4, "facts.world_size": 4},
    ),
    rule(
        "P10",
        ("model.num_moe_experts", SIZES[0], "model.sequence_parallel"),
        _expert_sequence,
        why="with tensor parallelism, Megatron Core's token dispatchers require a scattered sequence",
        fix="Set model.sequence_parallel=true or model.tensor_model_parallel_size=1.",
        fails=(8, 2, False),
        passes=(8, 2, True),
    ),
)
