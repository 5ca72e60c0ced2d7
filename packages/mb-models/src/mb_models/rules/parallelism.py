"""Rules on tensor, pipeline, expert and context parallelism."""

from math import prod

from mb_schema.rule_kinds import DEGREES, model_rule
from mb_schema.rules import rules_in


@model_rule(
    "P01",
    why="it is a number of processes",
    fix="Set it to 1 to disable this kind of parallelism.",
    fails={"tp": 0},
    passes={"tp": 1},
)
def _sizes_below_one(tp, pp, cp, ep, etp, vp):
    sizes = {"tp": tp, "pp": pp, "cp": cp, "ep": ep, "etp": etp, "vp": vp}
    wrong = {
        DEGREES[name].removeprefix("model."): size
        for name, size in sizes.items()
        if size is not None and size < 1
    }
    named = ", ".join(f"{name}={size}" for name, size in wrong.items())
    return f"parallel sizes must be at least 1 ({named})" if wrong else None


def _uneven_parts(parts: str, number: int | None, size: int | None, name: str) -> str | None:
    if number is None or not size or size < 1 or number % size == 0:
        return None
    return f"{number} {parts} cannot be split into {name}={size} equal parts"


@model_rule(
    "P03",
    why="keys and values are either split over the ranks or replicated evenly",
    fix="Change model.num_query_groups or model.tensor_model_parallel_size.",
    fails={"num_query_groups": 6, "tp": 4},
    passes={"num_query_groups": 2},
)
def _query_groups_not_shared_evenly(num_query_groups, tp):
    if not num_query_groups or not tp or num_query_groups % tp == 0 or tp % num_query_groups == 0:
        return None
    return f"{num_query_groups} query groups and tp={tp}: neither is a multiple of the other"


@model_rule(
    "P04",
    why="each query group shares one key and value head",
    fix="Make model.num_attention_heads a multiple of model.num_query_groups.",
    fails={"num_query_groups": 3, "num_attention_heads": 8},
    passes={"num_query_groups": 2},
)
def _heads_not_divided_by_query_groups(num_query_groups, num_attention_heads):
    if (
        num_query_groups is None
        or num_attention_heads is None
        or (num_query_groups >= 1 and num_attention_heads % num_query_groups == 0)
    ):
        return None
    return f"{num_attention_heads} attention heads cannot be divided equally over {num_query_groups} query groups"


@model_rule(
    "P05",
    why="each pipeline stage, including virtual ones, has the same number of layers",
    fix="Change model.num_layers or the pipeline sizes, or set an uneven layout.",
    fails={"num_layers": 6, "pp": 4},
    passes={"num_layers": 8, "pp": 2, "vp": 2},
)
def _layers_not_divided_by_stages(
    num_layers,
    pp,
    vp,
    hybrid_layer_pattern,
    num_layers_in_first_pipeline_stage,
    num_layers_in_last_pipeline_stage,
    pipeline_model_parallel_layout,
    account_for_embedding_in_pipeline_split,
    account_for_loss_in_pipeline_split,
):
    stages = (pp or 1) * (vp or 1)
    divided_by_pattern = hybrid_layer_pattern is not None and "|" in hybrid_layer_pattern
    uneven = (
        num_layers_in_first_pipeline_stage
        or num_layers_in_last_pipeline_stage
        or pipeline_model_parallel_layout
        or account_for_embedding_in_pipeline_split
        or account_for_loss_in_pipeline_split
    )
    if num_layers is None or divided_by_pattern or uneven or stages < 1 or num_layers % stages == 0:
        return None
    return f"{num_layers} layers cannot be split into pp x vp = {pp or 1} x {vp or 1} equal parts"


@model_rule(
    "P06",
    why="it scatters the sequence over the tensor-parallel ranks",
    fix="Set model.sequence_parallel=false or model.tensor_model_parallel_size above 1.",
    fails={"sequence_parallel": True},
    passes={"tp": 2},
)
def _sequence_parallel_without_tensor_parallel(sequence_parallel, tp):
    return "requires tensor parallelism (tp=1)" if sequence_parallel and (tp or 1) == 1 else None


@model_rule(
    "P07",
    why="virtual stages are interleaved on pipeline stages",
    fix="Set model.virtual_pipeline_model_parallel_size=null or model.pipeline_model_parallel_size above 1.",
    fails={"vp": 2},
    passes={"pp": 2},
)
def _virtual_stages_without_pipeline(vp, pp):
    return f"vp={vp} requires pipeline parallelism (pp=1)" if vp and vp > 1 and (pp or 1) == 1 else None


@model_rule(
    "P08",
    why="expert parallelism assigns entire experts to each rank",
    fix="Change model.num_moe_experts or model.expert_model_parallel_size.",
    fails={"num_moe_experts": 6, "ep": 4},
    passes={"num_moe_experts": 8},
)
def _experts_not_divided_by_ranks(num_moe_experts, ep):
    if not ep or ep < 2:
        return None
    if not num_moe_experts:
        return f"ep={ep} requires a model with experts (num_moe_experts={num_moe_experts or 'null'})"
    return _uneven_parts("experts", num_moe_experts, ep, "ep")


@model_rule(
    "P09",
    why="each replica of the experts uses ep x etp x pp processes",
    fix="Change the number of processes or the expert-parallel sizes.",
    fails={"ep": 8, "world_size": 4},
    passes={"ep": 4},
)
def _ranks_not_divided_by_expert_parallelism(ep, etp, tp, pp, *, world_size):
    sizes = [ep or 1, etp or tp or 1, pp or 1]
    as_dense = (ep or 1) == 1 and sizes[1] == (tp or 1)  # reported by V030
    if as_dense or world_size % prod(sizes) == 0:
        return None
    processes = "1 process is" if world_size == 1 else f"{world_size} processes are"
    return f"{processes} not a multiple of ep x etp x pp = {' x '.join(map(str, sizes))}"


@model_rule(
    "P10",
    why="with tensor parallelism, Megatron Core's token dispatchers require a scattered sequence",
    fix="Set model.sequence_parallel=true or model.tensor_model_parallel_size=1.",
    fails={"num_moe_experts": 8, "tp": 2},
    passes={"sequence_parallel": True},
)
def _experts_without_sequence_parallel(num_moe_experts, tp, sequence_parallel):
    if num_moe_experts and (tp or 1) > 1 and not sequence_parallel:
        return f"{num_moe_experts} experts with tp={tp} require sequence_parallel"
    return None


@model_rule(
    "V137",
    why="each context-parallel rank processes two chunks of the sequence, to balance the causal mask",
    fix="Make model.seq_length a multiple of twice model.context_parallel_size.",
    fails={"seq_length": 2050, "cp": 2},
    passes={"seq_length": 2048},
)
def _sequence_not_divided_by_context_parallel(seq_length, cp):
    if seq_length is None or not cp or cp < 2 or seq_length % (2 * cp) == 0:
        return None
    return f"{seq_length} is not a multiple of 2 x cp = {2 * cp}"


@model_rule(
    "P11",
    why="each tensor-parallel rank holds an equal part of the sequence of its context-parallel rank",
    fix="Make model.seq_length a multiple of tensor_model_parallel_size times context_parallel_size, or set "
    "model.sequence_parallel=false.",
    fails={"sequence_parallel": True, "seq_length": 1022, "tp": 4, "decoder_seq_length": None},
    passes={"seq_length": 1024},
)
def _sequence_not_divided_by_sequence_parallel(sequence_parallel, seq_length, decoder_seq_length, tp, cp):
    ranks = (tp or 1) * (cp or 1)
    if not sequence_parallel or seq_length is None or decoder_seq_length is not None or ranks < 1:
        return None  # a T5 has a rule of its own, on both of its lengths
    if seq_length % (cp or 1) or seq_length % ranks == 0:
        return None
    return f"{seq_length} is not a multiple of tp x cp = {ranks}"


@model_rule(
    "V154",
    why="a list contains the communication type of each layer",
    fix="Set model.cp_comm_type to one name, or to one name per layer.",
    fails={"cp_comm_type": ["p2p", "a2a"], "cp": 2, "num_layers": 4},
    passes={"cp_comm_type": "p2p"},
)
def _comm_types_not_one_per_layer(cp_comm_type, cp, num_layers):
    if (cp or 1) == 1 or cp_comm_type is None or isinstance(cp_comm_type, str):
        return None
    if not isinstance(cp_comm_type, list | tuple):
        return f"must be a name or a list of names, not {cp_comm_type!r}"
    return None if len(cp_comm_type) == num_layers else f"{len(cp_comm_type)} entries for {num_layers} layers"


@model_rule(
    "V155",
    why="without them Megatron Core silently runs without context parallelism",
    fix="Set model.hierarchical_context_parallel_sizes, or another model.cp_comm_type.",
    fails={"cp_comm_type": "a2a+p2p"},
    passes={"hierarchical_context_parallel_sizes": [2, 2]},
)
def _a2a_p2p_without_hierarchy(cp_comm_type, hierarchical_context_parallel_sizes):
    kinds: list[object] = [cp_comm_type] if isinstance(cp_comm_type, str) else []
    if isinstance(cp_comm_type, list | tuple):
        kinds = list(cp_comm_type)
    if hierarchical_context_parallel_sizes is None and any("a2a+p2p" in str(entry) for entry in kinds):
        return "a2a+p2p requires the sizes of the hierarchy, which are not set"
    return None


@model_rule(
    "V156",
    why="the levels of the hierarchy form the context-parallel group",
    fix="Make the product of the sizes equal model.context_parallel_size.",
    fails={"hierarchical_context_parallel_sizes": [2, 2], "cp": 8},
    passes={"hierarchical_context_parallel_sizes": [2, 4]},
)
def _hierarchy_of_other_product(hierarchical_context_parallel_sizes, cp):
    if not hierarchical_context_parallel_sizes or prod(hierarchical_context_parallel_sizes) == (cp or 1):
        return None
    return (
        f"the product of {list(hierarchical_context_parallel_sizes)} is "
        f"{prod(hierarchical_context_parallel_sizes)}, but cp={cp or 1}"
    )


@model_rule(
    "H04",
    why="every layer waits for collectives of this group, which are many times slower between nodes than over "
    "NVLink",
    fix="Lower it to the GPUs of a node, and increase model.pipeline_model_parallel_size or context_parallel_size.",
    fails={"tp": 16, "gpus_per_node": 8, "world_size": 16},
    passes={"tp": 8},
    severity="warning",
)
def _tensor_parallel_group_across_nodes(tp, etp, *, gpus_per_node, world_size):
    sizes = {"tensor_model_parallel_size": tp, "expert_tensor_parallel_size": etp}
    wide = [f"{name}={size}" for name, size in sizes.items() if size is not None and size > gpus_per_node]
    if not wide or world_size <= gpus_per_node:
        return None
    return f"groups exceed the {gpus_per_node} GPUs of a node ({', '.join(wide)})"


@model_rule(
    "G53",
    why="Megatron draws the same dropout mask on every context-parallel rank, so the parts of a sequence are not "
    "independent",
    fix="Set hidden_dropout=0 and attention_dropout=0, or context_parallel_size=1.",
    fails={"cp": 2, "hidden_dropout": 0.1, "attention_dropout": 0.0},
    passes={"hidden_dropout": 0.0},
)
def _dropout_with_context_parallel(cp, hidden_dropout, attention_dropout):
    if (cp or 1) == 1 or not (hidden_dropout or attention_dropout):
        return None
    return (
        f"cannot be combined with dropout (hidden {hidden_dropout}, attention {attention_dropout}, "
        f"context_parallel_size={cp})"
    )


@model_rule(
    "P02",
    why="tensor parallelism assigns entire heads to each rank",
    fix="Change model.num_attention_heads or model.tensor_model_parallel_size.",
    fails={"num_attention_heads": 6, "tp": 4},
    passes={"num_attention_heads": 8},
)
def _heads_not_shared_evenly(num_attention_heads, tp):
    return _uneven_parts("attention heads", num_attention_heads, tp, "tp")


RULES = rules_in(globals())


@model_rule(
    "G20",
    why="two stages would send and receive several tensors between the same two ranks in one batch, and the model "
    "would train incorrectly without an error",
    fix="Set overlap_p2p_comm=true and batch_p2p_comm=false.",
    fails={"vp": 2, "pp": 2, "overlap_p2p_comm": False, "batch_p2p_comm": True},
    passes={"overlap_p2p_comm": True, "batch_p2p_comm": False},
)
def _interleaving_mixes_microbatches(vp, pp, overlap_p2p_comm, batch_p2p_comm):
    if (
        vp is None
        or vp == 1
        or pp == 1
        or (overlap_p2p_comm and not batch_p2p_comm)
        or (pp > 2 and not overlap_p2p_comm)
    ):
        return None
    return (
        f"the exchange would mix up microbatches (pp={pp}, overlap_p2p_comm={overlap_p2p_comm}, "
        f"batch_p2p_comm={batch_p2p_comm})"
    )


INTERLEAVING = _interleaving_mixes_microbatches
"""Applies to a resolved section only, because the overlap section may still change the two switches. Not in `RULES`."""
