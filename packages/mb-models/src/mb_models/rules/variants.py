"""Rules on latent attention, positions, windows, multi-token prediction and uneven pipelines."""

from collections.abc import Sequence

from mb_models.gpt.pipeline_layout import read_layout
from mb_models.rules.model_rule import model_rule
from mb_schema.rule_kinds import above, as_warning, excludes, in_range, other_than, requires
from mb_schema.rules import Rule


def _query_groups_with_latent_attention(groups: int | None, heads: int, latent: bool) -> str | None:
    if not latent or groups in (None, heads):
        return None
    return f"is {groups} with {heads} query heads under multi_latent_attention"


def _sinks_unsupported_by_local_layers(kind: str, impl: str, cp: int, latent: bool) -> str | None:
    if kind == "vanilla" or impl != "local" or (cp == 1 and not latent):
        return None
    return (
        f"local layers do not support {kind} with context_parallel_size={cp}, multi_latent_attention={latent}"
    )


def _window_pattern_of_other_length(
    freq: int | Sequence[int] | None, window: tuple[int, int] | None, layers: int
) -> str | None:
    if freq is None:
        return None
    if window is None:
        return f"is {freq}, but no layer has a window"
    if isinstance(freq, int):
        return None if freq >= 1 else f"is {freq}"
    return None if len(freq) == layers else f"lists {len(freq)} layers of {layers}"


def _expert_pattern_of_other_length(
    freq: int | Sequence[int], experts: int | None, layers: int
) -> str | None:
    if isinstance(freq, int):
        return None if freq >= 1 or experts is None else f"is {freq}"
    return None if len(freq) == layers else f"lists {len(freq)} layers of {layers}"


def _layout_does_not_fit_layers(
    layout: str | Sequence[Sequence[str]] | None, layers: int, mtp: int | None, pp: int, vp: int | None
) -> str | None:
    if layout is None:
        return None
    try:
        rows = read_layout(layout)
    except ValueError as error:
        return str(error).partition(", because")[0]
    parts = [part for row in rows for part in row]
    counts = {"embedding": 1, "decoder": layers, "mtp": mtp or 0, "loss": 1}
    # compared first: the list of all layers may not fit in memory
    same_length = len(parts) == sum(counts.values())
    if not same_length or parts != [part for part, count in counts.items() for _ in range(count)]:
        expected = [part for part, count in counts.items() if count > 0]
        counted = ", ".join(f"{parts.count(part)} {part}" for part in dict.fromkeys(expected + parts))
        return (
            f"is not embedding, {layers} decoder layers, {mtp or 0} mtp layers and loss, in order ({counted})"
        )
    if len(rows) != pp * (vp or 1):
        return f"has {len(rows)} stages, but pp={pp} and vpp={vp} make {pp * (vp or 1)}"
    return None


def _mtp_before_last_stage(layout: str | Sequence[Sequence[str]] | None, mtp: int | None) -> str | None:
    if layout is None or not mtp:
        return None
    try:
        rows = read_layout(layout)
    except ValueError:
        return None
    return (
        None
        if not rows or "mtp" in rows[-1]
        else "has layers of multi-token prediction before the last stage"
    )


def _uneven_stages_with_accounting(
    first: int | None, last: int | None, embedding: bool, loss: bool
) -> str | None:
    if (first is None and last is None) or not (embedding or loss):
        return None
    return (
        f"is incompatible with account_for_embedding_in_pipeline_split={embedding}, account_for_loss={loss}"
    )


def _layout_with_another_split(
    layout: object, first: int | None, last: int | None, embedding: bool, loss: bool
) -> str | None:
    if layout is None or (first is None and last is None and not embedding and not loss):
        return None
    return f"is set with another split (first={first}, last={last}, embedding={embedding}, loss={loss})"


def _stages_do_not_fit_layers(
    first: int | None, last: int | None, layers: int, pp: int, vp: int | None
) -> str | None:
    if (first is None and last is None) or pp < 1:
        return None
    ends = [size for size in (first, last) if size is not None]
    middle, stages = layers - sum(ends), pp - len(ends)
    even = (middle > 0) == (stages > 0) and (stages <= 0 or middle % stages == 0)
    stage_layers = [*ends, middle // stages if stages > 0 else 0]
    if (
        min(ends) >= 1
        and middle >= 0
        and stages >= 0
        and even
        and all(size % (vp or 1) == 0 for size in stage_layers)
    ):
        return None
    return f"leaves {middle} of {layers} layers for {stages} of {pp} stages (first={first}, last={last}, vpp={vp})"


RULES: tuple[Rule, ...] = (
    excludes(
        "G14",
        {"model.position_embedding_type": other_than("rope", "none"), "model.multi_latent_attention": True},
        why="latent attention rotates a part of each head itself, as set by rope_type",
        fix="Set position_embedding_type=rope.",
        fails=("learned_absolute", True),
        passes=("rope", True),
    ),
    model_rule(
        "G15",
        ("num_query_groups", "num_attention_heads", "multi_latent_attention"),
        _query_groups_with_latent_attention,
        why="every query head has a separate key and value, computed from the latent vector",
        fix="Leave num_query_groups unset.",
        fails=(2, 4, True),
        passes=(None, 4, True),
    ),
    model_rule(
        "G16",
        ("softmax_type", "transformer_impl", "context_parallel_size", "multi_latent_attention"),
        _sinks_unsupported_by_local_layers,
        why="Megatron Core's unfused attention, the only one of local layers, supports sinks with complete "
        "sequences and equal widths only",
        fix='Set softmax_type=vanilla, or use transformer_impl "transformer_engine" on a GPU.',
        fails=("learnable", "local", 2, False),
        passes=("learnable", "local", 1, False),
    ),
    model_rule(
        "G17",
        ("window_attn_skip_freq", "window_size", "num_layers"),
        _window_pattern_of_other_length,
        why="it selects the layers without a window",
        fix="Set window_size, and a positive number or one entry for each layer, or unset window_attn_skip_freq.",
        fails=(2, None, 4),
        passes=([1, 1, 1, 0], (8, 0), 4),
    ),
    model_rule(
        "G18",
        ("moe_layer_freq", "num_moe_experts", "num_layers"),
        _expert_pattern_of_other_length,
        why="it selects the layers with experts",
        fix="Set a positive number, or one entry for each layer.",
        fails=([0, 1], 4, 4),
        passes=([0, 1, 1, 1], 4, 4),
    ),
    in_range(
        "G19",
        "model.mtp_num_layers",
        1,
        why="each layer predicts one further token",
        fix="Set a positive number, or leave it unset.",
        fails=0,
        passes=1,
    ),
    excludes(
        "G21",
        {
            "model.moe_token_dispatcher_type": "flex",
            "model.transformer_impl": "local",
            "model.num_moe_experts": True,
        },
        why="it consists of GPU kernels (DeepEP, HybridEP)",
        fix="Set moe_token_dispatcher_type=alltoall.",
        fails=("flex", "local", 4),
        passes=("flex", "transformer_engine", 4),
    ),
    model_rule(
        "G22",
        (
            "pipeline_model_parallel_layout",
            "num_layers",
            "mtp_num_layers",
            "pipeline_model_parallel_size",
            "virtual_pipeline_model_parallel_size",
        ),
        _layout_does_not_fit_layers,
        why="every part is on exactly one stage, in the order of the model",
        fix="Correct the layout, or the numbers.",
        fails=("Et|tL", 4, None, 2, None),
        passes=("Et|tttL", 4, None, 2, None),
    ),
    model_rule(
        "G23",
        ("pipeline_model_parallel_layout", "mtp_num_layers"),
        _mtp_before_last_stage,
        why="they share the embedding's weights, and only the first and the last stage exchange its gradients",
        fix="End the layout with mL.",
        fails=("Ett|ttm|L", 1),
        passes=("Ett|tt|mL", 1),
    ),
    as_warning(
        excludes(
            "G25",
            {"model.mtp_num_layers": True, "model.context_parallel_size": above(1)},
            why="Megatron Core divides their losses by each rank's own number of tokens, which differ by the last "
            "tokens of the sequence, so that gradients differ slightly from those without context parallelism",
            fix="Compare such runs only with each other.",
            fails=(1, 2),
            passes=(1, 1),
        )
    ),
    requires(
        "K37",
        {"model.apply_rope_fusion": True, "model.multi_latent_attention": True},
        {"model.rope_type": "yarn"},
        why="the fused kernel of latent attention computes YaRN's rotation",
        fix="Set rope_type=yarn, or apply_rope_fusion=false.",
        fails=(True, True, "rope"),
        passes=(False, True, "rope"),
    ),
    excludes(
        "K38",
        {"model.attention_output_gate": True, "model.multi_latent_attention": True},
        why="Megatron Core does not support a gate there",
        fix="Set attention_output_gate=false.",
        fails=(True, True),
        passes=(True, False),
    ),
    model_rule(
        "K39",
        (
            "num_layers_in_first_pipeline_stage",
            "num_layers_in_last_pipeline_stage",
            "account_for_embedding_in_pipeline_split",
            "account_for_loss_in_pipeline_split",
        ),
        _uneven_stages_with_accounting,
        why="both determine the number of layers of the outer stages",
        fix="Use only one of them.",
        fails=(1, None, True, False),
        passes=(None, None, False, False),
    ),
    model_rule(
        "K40",
        (
            "pipeline_model_parallel_layout",
            "num_layers_in_first_pipeline_stage",
            "num_layers_in_last_pipeline_stage",
            "account_for_embedding_in_pipeline_split",
            "account_for_loss_in_pipeline_split",
        ),
        _layout_with_another_split,
        why="the layout already determines the contents of every stage",
        fix="Keep only the layout, or only the others.",
        fails=("Et|tttL", 1, None, False, False),
        passes=(None, None, None, False, False),
    ),
    model_rule(
        "K41",
        (
            "num_layers_in_first_pipeline_stage",
            "num_layers_in_last_pipeline_stage",
            "num_layers",
            "pipeline_model_parallel_size",
            "virtual_pipeline_model_parallel_size",
        ),
        _stages_do_not_fit_layers,
        why="intermediate stages have equal numbers of layers, and each number is divisible by the virtual stages",
        fix="Change one of the numbers.",
        fails=(2, None, 4, 4, None),
        passes=(1, None, 4, 2, None),
    ),
)
"""Rules on `mb_models.gpt.variant_fields` and uneven pipelines; ids with K are Megatron Core's own conditions."""
