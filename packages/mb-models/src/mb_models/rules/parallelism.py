"""Rules on tensor, pipeline, expert and context parallelism."""

from math import prod

from mb_schema.rule_kinds import rule, within
from mb_schema.rules import Rule

_TP, _PP, _CP = within(
    "model", "tensor_model_parallel_size pipeline_model_parallel_size context_parallel_size"
)
_VP = "model.virtual_pipeline_model_parallel_size"
_EP, _ETP = within("model", "expert_model_parallel_size expert_tensor_parallel_size")
_SIZES = (_TP, _PP, _CP, _EP, _ETP, _VP)


def _sizes_below_one(*sizes: int | None) -> str | None:
    pairs = zip(_SIZES, sizes, strict=True)
    wrong = [f"{path.removeprefix('model.')}={size}" for path, size in pairs if size is not None and size < 1]
    return f"parallel sizes must be at least 1 ({', '.join(wrong)})" if wrong else None


def _uneven_parts(parts: str, number: int | None, size: int | None, name: str) -> str | None:
    if number is None or not size or size < 1 or number % size == 0:
        return None
    return f"{number} {parts} cannot be split into {name}={size} equal parts"


def _query_groups_not_shared_evenly(groups: int | None, tp: int | None) -> str | None:
    if not groups or not tp or groups % tp == 0 or tp % groups == 0:
        return None
    return f"{groups} query groups and tp={tp}: neither is a multiple of the other"


def _heads_not_divided_by_query_groups(groups: int | None, heads: int | None) -> str | None:
    if groups is None or heads is None or (groups >= 1 and heads % groups == 0):
        return None
    return f"{heads} attention heads cannot be divided equally over {groups} query groups"


def _layers_not_divided_by_stages(
    layers: int | None, pp: int | None, vp: int | None, pattern: str | None, *uneven: object
) -> str | None:
    stages = (pp or 1) * (vp or 1)
    divided_by_pattern = pattern is not None and "|" in pattern
    if layers is None or divided_by_pattern or any(uneven) or stages < 1 or layers % stages == 0:
        return None
    return f"{layers} layers cannot be split into pp x vp = {pp or 1} x {vp or 1} equal parts"


def _sequence_parallel_without_tensor_parallel(on: bool | None, tp: int | None) -> str | None:
    return "requires tensor parallelism (tp=1)" if on and (tp or 1) == 1 else None


def _virtual_stages_without_pipeline(vp: int | None, pp: int | None) -> str | None:
    return f"vp={vp} requires pipeline parallelism (pp=1)" if vp and vp > 1 and (pp or 1) == 1 else None


def _experts_not_divided_by_ranks(experts: int | None, ep: int | None) -> str | None:
    if not ep or ep < 2:
        return None
    if not experts:
        return f"ep={ep} requires a model with experts (num_moe_experts={experts or 'null'})"
    return _uneven_parts("experts", experts, ep, "ep")


def _ranks_not_divided_by_expert_parallelism(
    ep: int | None, etp: int | None, tp: int | None, pp: int | None, world: int
) -> str | None:
    sizes = [ep or 1, etp or tp or 1, pp or 1]
    as_dense = (ep or 1) == 1 and sizes[1] == (tp or 1)  # reported by V030
    if as_dense or world % prod(sizes) == 0:
        return None
    processes = "1 process is" if world == 1 else f"{world} processes are"
    return f"{processes} not a multiple of ep x etp x pp = {' x '.join(map(str, sizes))}"


def _experts_without_sequence_parallel(experts: int | None, tp: int | None, on: bool | None) -> str | None:
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


def _sequence_not_divided_by_context_parallel(length: int | None, cp: int | None) -> str | None:
    if length is None or not cp or cp < 2 or length % (2 * cp) == 0:
        return None
    return f"{length} is not a multiple of 2 x cp = {2 * cp}"


def _comm_types_not_one_per_layer(kind: object, cp: int | None, layers: int | None) -> str | None:
    if (cp or 1) == 1 or kind is None or isinstance(kind, str):
        return None
    if not isinstance(kind, list | tuple):
        return f"must be a name or a list of names, not {kind!r}"
    return None if len(kind) == layers else f"{len(kind)} entries for {layers} layers"


def _a2a_p2p_without_hierarchy(kind: object, sizes: list[int] | None) -> str | None:
    kinds: list[object] = [kind] if isinstance(kind, str) else []
    if isinstance(kind, list | tuple):
        kinds = list(kind)
    if sizes is None and any("a2a+p2p" in str(entry) for entry in kinds):
        return "a2a+p2p requires the sizes of the hierarchy, which are not set"
    return None


def _hierarchy_of_other_product(sizes: list[int] | None, cp: int | None) -> str | None:
    if not sizes or prod(sizes) == (cp or 1):
        return None
    return f"the product of {list(sizes)} is {prod(sizes)}, but cp={cp or 1}"


def _tensor_parallel_group_across_nodes(
    tp: int | None, expert_tp: int | None, gpus: int, world_size: int
) -> str | None:
    sizes = {"tensor_model_parallel_size": tp, "expert_tensor_parallel_size": expert_tp}
    wide = [f"{name}={size}" for name, size in sizes.items() if size is not None and size > gpus]
    if not wide or world_size <= gpus:
        return None
    return f"groups exceed the {gpus} GPUs of a node ({', '.join(wide)})"


def _dropout_with_context_parallel(
    cp: int | None, hidden: float | None, attention: float | None
) -> str | None:
    if (cp or 1) == 1 or not (hidden or attention):
        return None
    return f"cannot be combined with dropout (hidden {hidden}, attention {attention}, context_parallel_size={cp})"


def _interleaving_mixes_microbatches(vpp: int | None, pp: int, overlap: bool, batch: bool) -> str | None:
    if vpp is None or vpp == 1 or pp == 1 or (overlap and not batch) or (pp > 2 and not overlap):
        return None
    return f"the exchange would mix up microbatches (pp={pp}, overlap_p2p_comm={overlap}, batch_p2p_comm={batch})"


RULES: tuple[Rule, ...] = (
    Rule(
        id="P01",
        fields=_SIZES,
        test=_sizes_below_one,
        why="it is a number of processes",
        fix="Set it to 1 to disable this kind of parallelism.",
        fails={_TP: 0},
        passes={_TP: 1},
    ),
    rule(
        "P02",
        ("model.num_attention_heads", _TP),
        lambda heads, tp: _uneven_parts("attention heads", heads, tp, "tp"),
        why="tensor parallelism assigns entire heads to each rank",
        fix="Change model.num_attention_heads or model.tensor_model_parallel_size.",
        fails=(6, 4),
        passes=(8, 4),
    ),
    rule(
        "P03",
        ("model.num_query_groups", _TP),
        _query_groups_not_shared_evenly,
        why="keys and values are either split over the ranks or replicated evenly",
        fix="Change model.num_query_groups or model.tensor_model_parallel_size.",
        fails=(6, 4),
        passes=(2, 4),
    ),
    rule(
        "P04",
        within("model", "num_query_groups num_attention_heads"),
        _heads_not_divided_by_query_groups,
        why="each query group shares one key and value head",
        fix="Make model.num_attention_heads a multiple of model.num_query_groups.",
        fails=(3, 8),
        passes=(2, 8),
    ),
    Rule(
        id="P05",
        fields=("model.num_layers", _PP, _VP, "model.hybrid_layer_pattern", *_UNEVEN),
        test=_layers_not_divided_by_stages,
        why="each pipeline stage, including virtual ones, has the same number of layers",
        fix="Change model.num_layers or the pipeline sizes, or set an uneven layout.",
        fails={"model.num_layers": 6, _PP: 4},
        passes={"model.num_layers": 8, _PP: 2, _VP: 2},
    ),
    rule(
        "P06",
        ("model.sequence_parallel", _TP),
        _sequence_parallel_without_tensor_parallel,
        why="it scatters the sequence over the tensor-parallel ranks",
        fix="Set model.sequence_parallel=false or model.tensor_model_parallel_size above 1.",
        fails=(True, 1),
        passes=(True, 2),
    ),
    rule(
        "P07",
        (_VP, _PP),
        _virtual_stages_without_pipeline,
        why="virtual stages are interleaved on pipeline stages",
        fix="Set model.virtual_pipeline_model_parallel_size=null or model.pipeline_model_parallel_size above 1.",
        fails=(2, 1),
        passes=(2, 2),
    ),
    rule(
        "P08",
        within("model", "num_moe_experts expert_model_parallel_size"),
        _experts_not_divided_by_ranks,
        why="expert parallelism assigns entire experts to each rank",
        fix="Change model.num_moe_experts or model.expert_model_parallel_size.",
        fails=(6, 4),
        passes=(8, 4),
    ),
    Rule(
        id="P09",
        fields=(
            _EP,
            _ETP,
            _TP,
            _PP,
            "facts.world_size",
        ),
        test=_ranks_not_divided_by_expert_parallelism,
        why="each replica of the experts uses ep x etp x pp processes",
        fix="Change the number of processes or the expert-parallel sizes.",
        fails={_EP: 8, "facts.world_size": 4},
        passes={_EP: 4, "facts.world_size": 4},
    ),
    rule(
        "P10",
        ("model.num_moe_experts", _TP, "model.sequence_parallel"),
        _experts_without_sequence_parallel,
        why="with tensor parallelism, Megatron Core's token dispatchers require a scattered sequence",
        fix="Set model.sequence_parallel=true or model.tensor_model_parallel_size=1.",
        fails=(8, 2, False),
        passes=(8, 2, True),
    ),
    rule(
        "V137",
        ("model.seq_length", _CP),
        _sequence_not_divided_by_context_parallel,
        why="each context-parallel rank processes two chunks of the sequence, to balance the causal mask",
        fix="Make model.seq_length a multiple of twice model.context_parallel_size.",
        fails=(2050, 2),
        passes=(2048, 2),
    ),
    rule(
        "V154",
        ("model.cp_comm_type", _CP, "model.num_layers"),
        _comm_types_not_one_per_layer,
        why="a list contains the communication type of each layer",
        fix="Set model.cp_comm_type to one name, or to one name per layer.",
        fails=(["p2p", "a2a"], 2, 4),
        passes=("p2p", 2, 4),
    ),
    rule(
        "V155",
        within("model", "cp_comm_type hierarchical_context_parallel_sizes"),
        _a2a_p2p_without_hierarchy,
        why="without them Megatron Core silently runs without context parallelism",
        fix="Set model.hierarchical_context_parallel_sizes, or another model.cp_comm_type.",
        fails=("a2a+p2p",),
        passes=("a2a+p2p", [2, 2]),
    ),
    rule(
        "V156",
        ("model.hierarchical_context_parallel_sizes", _CP),
        _hierarchy_of_other_product,
        why="the levels of the hierarchy form the context-parallel group",
        fix="Make the product of the sizes equal model.context_parallel_size.",
        fails=([2, 2], 8),
        passes=([2, 4], 8),
    ),
    Rule(
        id="H04",
        fields=(
            _TP,
            _ETP,
            "facts.gpus_per_node",
            "facts.world_size",
        ),
        test=_tensor_parallel_group_across_nodes,
        why="every layer waits for collectives of this group, which are many times slower between nodes than over "
        "NVLink",
        fix="Lower it to the GPUs of a node, and increase model.pipeline_model_parallel_size or context_parallel_size.",
        severity="warning",
        fails={
            _TP: 16,
            "facts.gpus_per_node": 8,
            "facts.world_size": 16,
        },
        passes={
            _TP: 8,
            "facts.gpus_per_node": 8,
            "facts.world_size": 16,
        },
    ),
    rule(
        "G53",
        within("model", "context_parallel_size hidden_dropout attention_dropout"),
        _dropout_with_context_parallel,
        why="Megatron draws the same dropout mask on every context-parallel rank, so the parts of a sequence are not "
        "independent",
        fix="Set hidden_dropout=0 and attention_dropout=0, or context_parallel_size=1.",
        fails=(2, 0.1, 0.0),
        passes=(2, 0.0, 0.0),
    ),
)

INTERLEAVING = rule(
    "G20",
    within(
        "model",
        "virtual_pipeline_model_parallel_size pipeline_model_parallel_size overlap_p2p_comm batch_p2p_comm",
    ),
    _interleaving_mixes_microbatches,
    why="two stages would send and receive several tensors between the same two ranks in one batch, and the model "
    "would train incorrectly without an error",
    fix="Set overlap_p2p_comm=true and batch_p2p_comm=false.",
    fails=(2, 2, False, True),
    passes=(2, 2, True, False),
)
"""Applies to a resolved section only, because the overlap section may still change the two switches."""
