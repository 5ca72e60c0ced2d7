"""Rules on latent attention, positions, windows, multi-token prediction and uneven pipelines."""

import re
from collections.abc import Sequence
from dataclasses import fields

from mb_models.gpt.variant_fields import LatentAttentionFields
from mb_schema.rule_kinds import excludes, in_range, model_rule, no_effect, other_than, requires
from mb_schema.rules import Rule, rules_in

PARTS = {"E": "embedding", "t": "decoder", "m": "mtp", "L": "loss"}
"""Letter -> part of the model."""

LATENT_SIZES = {
    f"model.{item.name}": item.default
    for item in fields(LatentAttentionFields)
    if not isinstance(item.default, bool)
}
"""Path -> default of each field of latent attention that is no switch."""

MAX_PARTS = 10_000
"""Maximum number of parts after repetitions are expanded."""


def read_layout(layout: str | Sequence[Sequence[str]]) -> list[list[str]]:
    """Return the parts of every stage, virtual stages included, in the order of the model.

    In text form, | ends a stage, and `x*n` and `(...)*n` repeat: "Et*3|(tt|)*2mL".

    Raises:
        ValueError: the layout holds anything else.
    """
    if isinstance(layout, str):
        text = _repeated(_repeated(re.sub("[ ,]", "", layout), r"\(([^)]+)\)\*(\d+)"), r"(.)\*(\d+)")
        rows = [[PARTS.get(letter, letter) for letter in row] for row in text.split("|")]
    else:
        rows = [[part.strip().lower() for part in row] for row in layout]
    unknown = sorted({part for row in rows for part in row} - {*PARTS.values()})
    if unknown:
        raise ValueError(
            f"{layout!r} holds {', '.join(unknown)}, because a layout consists of {', '.join(PARTS.values())}, written "
            f"{', '.join(PARTS)} in text form. Correct it."
        )
    return rows


def _repeated(text: str, pattern: str) -> str:
    """Expand the repetitions that a pattern matches: its first group as many times as its second."""
    times = [(part, int(number) if len(number) < 10 else 10**9) for part, number in re.findall(pattern, text)]
    parts = sum(len(part) * number for part, number in times)
    if parts > MAX_PARTS:
        raise ValueError(
            f"{text!r} repeats {parts:,} parts or more, because a text is expanded before it is parsed, up to "
            f"{MAX_PARTS:,}. Correct it."
        )
    return re.sub(pattern, lambda match: match[1] * int(match[2]), text)


@model_rule(
    "G15",
    why="every query head has a separate key and value, computed from the latent vector",
    fix="Leave num_query_groups unset.",
    fails={"num_query_groups": 2, "num_attention_heads": 4, "multi_latent_attention": True},
    passes={"num_query_groups": None},
)
def _query_groups_with_latent_attention(num_query_groups, num_attention_heads, multi_latent_attention):
    if not multi_latent_attention or num_query_groups in (None, num_attention_heads):
        return None
    return f"is {num_query_groups} with {num_attention_heads} query heads under multi_latent_attention"


@model_rule(
    "G16",
    why="Megatron Core's unfused attention, the only one of local layers, supports sinks with complete "
    "sequences and equal widths only",
    fix='Set softmax_type=vanilla, or use transformer_impl "transformer_engine" on a GPU.',
    fails={
        "softmax_type": "learnable",
        "transformer_impl": "local",
        "cp": 2,
        "multi_latent_attention": False,
    },
    passes={"cp": 1},
)
def _sinks_unsupported_by_local_layers(softmax_type, transformer_impl, cp, multi_latent_attention):
    if softmax_type == "vanilla" or transformer_impl != "local" or (cp == 1 and not multi_latent_attention):
        return None
    return (
        f"local layers do not support {softmax_type} with context_parallel_size={cp}, "
        f"multi_latent_attention={multi_latent_attention}"
    )


@model_rule(
    "G17",
    why="it selects the layers without a window",
    fix="Set window_size, and a positive number or one entry for each layer, or unset window_attn_skip_freq.",
    fails={"window_attn_skip_freq": 2, "num_layers": 4},
    passes={"window_attn_skip_freq": [1, 1, 1, 0], "window_size": (8, 0)},
)
def _window_pattern_of_other_length(window_attn_skip_freq, window_size, num_layers):
    if window_attn_skip_freq is None:
        return None
    if window_size is None:
        return f"is {window_attn_skip_freq}, but no layer has a window"
    if isinstance(window_attn_skip_freq, int):
        return None if window_attn_skip_freq >= 1 else f"is {window_attn_skip_freq}"
    return (
        None
        if len(window_attn_skip_freq) == num_layers
        else f"lists {len(window_attn_skip_freq)} layers of {num_layers}"
    )


@model_rule(
    "G18",
    why="it selects the layers with experts",
    fix="Set a positive number, or one entry for each layer.",
    fails={"moe_layer_freq": [0, 1], "num_layers": 4},
    passes={"moe_layer_freq": [0, 1, 1, 1]},
)
def _expert_pattern_of_other_length(moe_layer_freq, num_moe_experts, num_layers):
    if isinstance(moe_layer_freq, int):
        return None if moe_layer_freq >= 1 or num_moe_experts is None else f"is {moe_layer_freq}"
    return (
        None if len(moe_layer_freq) == num_layers else f"lists {len(moe_layer_freq)} layers of {num_layers}"
    )


@model_rule(
    "G22",
    why="every part is on exactly one stage, in the order of the model",
    fix="Correct the layout, or the numbers.",
    fails={"pipeline_model_parallel_layout": "Et|tL", "num_layers": 4, "pp": 2},
    passes={"pipeline_model_parallel_layout": "Et|tttL"},
)
def _layout_does_not_fit_layers(pipeline_model_parallel_layout, num_layers, mtp_num_layers, pp, vp):
    if pipeline_model_parallel_layout is None:
        return None
    try:
        rows = read_layout(pipeline_model_parallel_layout)
    except ValueError as error:
        return str(error).partition(", because")[0]
    parts = [part for row in rows for part in row]
    counts = {"embedding": 1, "decoder": num_layers, "mtp": mtp_num_layers or 0, "loss": 1}
    # compared first: the list of all layers may not fit in memory
    same_length = len(parts) == sum(counts.values())
    if not same_length or parts != [part for part, count in counts.items() for _ in range(count)]:
        expected = [part for part, count in counts.items() if count > 0]
        counted = ", ".join(f"{parts.count(part)} {part}" for part in dict.fromkeys(expected + parts))
        return (
            f"is not embedding, {num_layers} decoder layers, {mtp_num_layers or 0} mtp layers and loss, in "
            f"order ({counted})"
        )
    if len(rows) != pp * (vp or 1):
        return f"has {len(rows)} stages, but pp={pp} and vpp={vp} make {pp * (vp or 1)}"
    return None


@model_rule(
    "G23",
    why="they share the embedding's weights, and only the first and the last stage exchange its gradients",
    fix="End the layout with mL.",
    fails={"pipeline_model_parallel_layout": "Ett|ttm|L", "mtp_num_layers": 1},
    passes={"pipeline_model_parallel_layout": "Ett|tt|mL"},
)
def _mtp_before_last_stage(pipeline_model_parallel_layout, mtp_num_layers):
    if pipeline_model_parallel_layout is None or not mtp_num_layers:
        return None
    try:
        rows = read_layout(pipeline_model_parallel_layout)
    except ValueError:
        return None
    return (
        None
        if not rows or "mtp" in rows[-1]
        else "has layers of multi-token prediction before the last stage"
    )


@model_rule(
    "G64",
    why="the stage that predicts has a separate table of positions, which Megatron Core neither initializes nor trains "
    "as that of the first stage",
    fix="Set position_embedding_type=rope, or pipeline_model_parallel_size=1.",
    fails={"mtp_num_layers": 1, "position_embedding_type": "learned_absolute", "pp": 2},
    passes={"position_embedding_type": "rope"},
)
def _positions_of_predictions(position_embedding_type, mtp_num_layers, pp):
    if position_embedding_type != "learned_absolute" or not mtp_num_layers or (pp or 1) < 2:
        return None
    return f"is learned_absolute with mtp_num_layers={mtp_num_layers} and pp={pp}"


@model_rule(
    "K39",
    why="both determine the number of layers of the outer stages",
    fix="Use only one of them.",
    fails={
        "num_layers_in_first_pipeline_stage": 1,
        "account_for_embedding_in_pipeline_split": True,
        "account_for_loss_in_pipeline_split": False,
    },
    passes={"num_layers_in_first_pipeline_stage": None, "account_for_embedding_in_pipeline_split": False},
)
def _uneven_stages_with_accounting(
    num_layers_in_first_pipeline_stage,
    num_layers_in_last_pipeline_stage,
    account_for_embedding_in_pipeline_split,
    account_for_loss_in_pipeline_split,
):
    if (num_layers_in_first_pipeline_stage is None and num_layers_in_last_pipeline_stage is None) or not (
        account_for_embedding_in_pipeline_split or account_for_loss_in_pipeline_split
    ):
        return None
    return (
        "is incompatible with "
        f"account_for_embedding_in_pipeline_split={account_for_embedding_in_pipeline_split}, "
        f"account_for_loss={account_for_loss_in_pipeline_split}"
    )


@model_rule(
    "K40",
    why="the layout already determines the contents of every stage",
    fix="Keep only the layout, or only the others.",
    fails={
        "pipeline_model_parallel_layout": "Et|tttL",
        "num_layers_in_first_pipeline_stage": 1,
        "account_for_embedding_in_pipeline_split": False,
        "account_for_loss_in_pipeline_split": False,
    },
    passes={"pipeline_model_parallel_layout": None, "num_layers_in_first_pipeline_stage": None},
)
def _layout_with_another_split(
    pipeline_model_parallel_layout,
    num_layers_in_first_pipeline_stage,
    num_layers_in_last_pipeline_stage,
    account_for_embedding_in_pipeline_split,
    account_for_loss_in_pipeline_split,
):
    if pipeline_model_parallel_layout is None or (
        num_layers_in_first_pipeline_stage is None
        and num_layers_in_last_pipeline_stage is None
        and not account_for_embedding_in_pipeline_split
        and not account_for_loss_in_pipeline_split
    ):
        return None
    return (
        f"is set with another split (first={num_layers_in_first_pipeline_stage}, "
        f"last={num_layers_in_last_pipeline_stage}, embedding={account_for_embedding_in_pipeline_split}, "
        f"loss={account_for_loss_in_pipeline_split})"
    )


@model_rule(
    "K41",
    why="intermediate stages have equal numbers of layers, and each number is divisible by the virtual stages",
    fix="Change one of the numbers.",
    fails={"num_layers_in_first_pipeline_stage": 2, "num_layers": 4, "pp": 4},
    passes={"num_layers_in_first_pipeline_stage": 1, "pp": 2},
)
def _stages_do_not_fit_layers(
    num_layers_in_first_pipeline_stage, num_layers_in_last_pipeline_stage, num_layers, pp, vp
):
    if (num_layers_in_first_pipeline_stage is None and num_layers_in_last_pipeline_stage is None) or pp < 1:
        return None
    ends = [
        size
        for size in (num_layers_in_first_pipeline_stage, num_layers_in_last_pipeline_stage)
        if size is not None
    ]
    middle, stages = num_layers - sum(ends), pp - len(ends)
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
    return (
        f"leaves {middle} of {num_layers} layers for {stages} of {pp} stages "
        f"(first={num_layers_in_first_pipeline_stage}, last={num_layers_in_last_pipeline_stage}, vpp={vp})"
    )


@model_rule(
    "G14b",
    why="latent attention rotates a part of each head itself, as set by rope_type",
    fix="Set position_embedding_type=rope, unless the weights have learned positions.",
    fails={"multi_latent_attention": True, "position_embedding_type": "learned_absolute"},
    passes={"position_embedding_type": "rope"},
    severity="warning",
)
def _positions_counted_twice(multi_latent_attention, position_embedding_type):
    if multi_latent_attention and position_embedding_type == "learned_absolute":
        return "adds learned positions to those of latent attention"
    return None


@model_rule(
    "G14c",
    why="only the rotary positions of position_embedding_type=rope are scaled by them",
    fix="Remove them; YaRN has yarn_rotary_scaling_factor, latent attention rotary_scaling_factor.",
    fails={"position_embedding_type": "yarn", "seq_len_interpolation_factor": 2.0},
    passes={"position_embedding_type": "rope"},
)
def _scaling_without_effect(
    position_embedding_type, multi_latent_attention, rope_scaling, seq_len_interpolation_factor
):
    if not multi_latent_attention and position_embedding_type in ("rope", None):
        return None
    interpolated = seq_len_interpolation_factor is not None and position_embedding_type != "mrope"
    ignored = [
        *(["rope_scaling"] if rope_scaling else ()),
        *(["seq_len_interpolation_factor"] if interpolated else ()),
    ]
    return f"{' and '.join(ignored)} would have no effect" if ignored else None


RULES: tuple[Rule, ...] = (
    excludes(
        "G14",
        {
            "model.position_embedding_type": other_than("rope", "none", "learned_absolute"),
            "model.multi_latent_attention": True,
        },
        why="latent attention rotates a part of each head itself, as set by rope_type",
        fix="Set position_embedding_type=rope.",
        fails={"model.position_embedding_type": "yarn"},
        passes={"model.position_embedding_type": "rope"},
    ),
    *rules_in(globals()),
    requires(
        "G15a",
        {"model.mla_down_proj_fusion": True},
        {"model.multi_latent_attention": True},
        why="other attention has no down projections",
        fix="Set multi_latent_attention=true, or switch it off.",
    ),
    no_effect(
        "G15b",
        "model.multi_latent_attention",
        LATENT_SIZES,
        why="only latent attention has these sizes and positions",
        fix="Set multi_latent_attention=true, or remove them.",
        fails={"model.kv_lora_rank": 64},
        severity="warning",
    ),
    in_range(
        "G19",
        "model.mtp_num_layers",
        1,
        why="each layer predicts one further token",
        fix="Set a positive number, or leave it unset.",
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
        fails={"model.num_moe_experts": 4},
    ),
    requires(
        "K37",
        {"model.apply_rope_fusion": True, "model.multi_latent_attention": True},
        {"model.rope_type": "yarn"},
        why="the fused kernel of latent attention computes YaRN's rotation",
        fix="Set rope_type=yarn, or apply_rope_fusion=false.",
        fails={"model.rope_type": "rope"},
    ),
    excludes(
        "K38",
        {"model.attention_output_gate": True, "model.multi_latent_attention": True},
        why="Megatron Core does not support a gate there",
        fix="Set attention_output_gate=false.",
    ),
)
"""Rules on `mb_models.gpt.variant_fields` and uneven pipelines; ids with K are Megatron Core's own conditions."""
