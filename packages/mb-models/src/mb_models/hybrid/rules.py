"""Rules on the section of a hybrid model, in addition to those for every family."""

from dataclasses import fields
from functools import partial

from mb_models.family_rules import family_rule
from mb_models.hybrid.config import MambaModelConfig, main_layers, mamba_heads, mtp_layers
from mb_schema.rules import Rule, rules_in

hybrid_rule = partial(family_rule, "hybrid_layer_pattern")

LAYERS = "MG*-E"
"""Letters of the supported layers."""


@hybrid_rule(
    "HY01",
    why="every letter is one layer: M Mamba, G gated delta, * attention, - MLP, E experts",
    fix="Use these letters, | between pipeline stages, and / before the layers of each token beyond the next.",
    fails={"hybrid_layer_pattern": "M+M"},
    passes={"hybrid_layer_pattern": "MG*-|E/*-"},
)
def _known_letters(hybrid_layer_pattern):
    unknown = sorted(set(hybrid_layer_pattern) - set(LAYERS + "|/"))
    if unknown:
        return f"{hybrid_layer_pattern!r} has unsupported letters ({', '.join(unknown)})"
    return None if main_layers(hybrid_layer_pattern) else f"{hybrid_layer_pattern!r} has no layers"


@hybrid_rule(
    "HY02",
    why="the pattern lists the layers, and Megatron indexes the experts' losses by num_layers",
    fix="Set num_layers to the number of letters before the first /.",
    fails={"num_layers": 2, "hybrid_layer_pattern": "M*-"},
    passes={"num_layers": 3, "hybrid_layer_pattern": "M|*-/*"},
)
def _layer_count(num_layers, hybrid_layer_pattern):
    number = len(main_layers(hybrid_layer_pattern))
    return (
        None if num_layers == number else f"is {num_layers}, but {hybrid_layer_pattern!r} has {number} layers"
    )


@hybrid_rule(
    "HY03",
    why="layers E have num_moe_experts experts, and no other layer has any",
    fix="Set num_moe_experts together with a pattern that has E, or neither.",
    fails={"num_moe_experts": 4, "hybrid_layer_pattern": "M*-"},
    passes={"hybrid_layer_pattern": "M*E"},
)
def _experts_match_pattern(num_moe_experts, hybrid_layer_pattern):
    if (num_moe_experts is not None) == ("E" in hybrid_layer_pattern):
        return None
    return f"is {num_moe_experts} with the pattern {hybrid_layer_pattern!r}"


@hybrid_rule(
    "HY04",
    why="every pipeline stage, virtual or not, is one part between |, and without | stages have equal lengths, unless "
    "the layers of the first or last stage are set",
    fix="Put | between the stages: one part for each of pipeline_model_parallel_size times virtual stages.",
    fails={"hybrid_layer_pattern": "M*-", "pp": 2},
    passes={"hybrid_layer_pattern": "M*|-"},
)
def _stages(
    hybrid_layer_pattern, pp, vp, num_layers_in_first_pipeline_stage, num_layers_in_last_pipeline_stage
):
    parts, stages = hybrid_layer_pattern.split("/")[0].split("|"), pp * (vp or 1)
    if len(parts) == stages and (len(parts) == 1 or all(parts)):
        return None
    uneven = num_layers_in_first_pipeline_stage or num_layers_in_last_pipeline_stage  # checked by K41
    if len(parts) == 1 and (vp or 1) == 1 and (uneven or len(parts[0]) % pp == 0):
        return None
    return f"{hybrid_layer_pattern!r} cannot be divided into {stages} stages (pp={pp}, vpp={vp})"


@hybrid_rule(
    "HY05",
    why="the | of a pattern define the first layer of each stage; a layout, or embedding and loss as layers, have no "
    "effect on a hybrid",
    fix="Put | between the stages, and unset the others.",
    fails={"hybrid_layer_pattern": "M|*-", "num_layers_in_first_pipeline_stage": 1},
    passes={"hybrid_layer_pattern": "M*-"},
)
def _single_split(
    hybrid_layer_pattern,
    num_layers_in_first_pipeline_stage,
    num_layers_in_last_pipeline_stage,
    pipeline_model_parallel_layout,
    account_for_embedding_in_pipeline_split,
    account_for_loss_in_pipeline_split,
):
    outer = (num_layers_in_first_pipeline_stage, num_layers_in_last_pipeline_stage)
    as_layers = (account_for_embedding_in_pipeline_split, account_for_loss_in_pipeline_split)
    requested = [
        value
        for value in (
            pipeline_model_parallel_layout,
            *(outer if "|" in hybrid_layer_pattern else ()),
            *(each or None for each in as_layers),
        )
        if value is not None
    ]
    if requested:
        return f"a second division of {hybrid_layer_pattern!r} into stages is set ({requested[0]})"
    return None


@hybrid_rule(
    "HY06",
    why="each token beyond the next is predicted by the same layers, one /... in the pattern for each",
    fix="Repeat the part after / for each token beyond the next, and leave mtp_num_layers unset.",
    fails={"hybrid_layer_pattern": "M*/*-/*"},
    passes={"hybrid_layer_pattern": "M*/*-/*-"},
)
def _further_tokens(hybrid_layer_pattern, mtp_num_layers):
    ahead = mtp_layers(hybrid_layer_pattern)
    if len(set(ahead)) > 1 or "" in ahead or any("|" in part for part in ahead):
        return f"{hybrid_layer_pattern!r} does not have the same layers for each predicted token"
    if mtp_num_layers is None or mtp_num_layers == len(ahead):
        return None
    return f"{hybrid_layer_pattern!r} predicts {len(ahead)} tokens beyond the next, mtp_num_layers={mtp_num_layers}"


@hybrid_rule(
    "HY07",
    why="tensor- and context-parallel ranks share the heads and groups of Mamba layers evenly, and every chunk has "
    "tokens",
    fix="Change mamba_num_heads, mamba_num_groups or mamba_chunk_size, or the parallel sizes.",
    fails={
        "hybrid_layer_pattern": "M",
        "mamba_state_dim": 16,
        "mamba_head_dim": 16,
        "mamba_num_groups": 1,
        "mamba_num_heads": 8,
        "mamba_chunk_size": 128,
        "tp": 2,
        "cp": 1,
    },
    passes={"mamba_num_groups": 2, "cp": 2},
)
def _state_space(
    hybrid_layer_pattern,
    hidden_size,
    mamba_state_dim,
    mamba_head_dim,
    mamba_num_groups,
    mamba_num_heads,
    mamba_chunk_size,
    tp,
    cp,
):
    if "M" not in hybrid_layer_pattern:
        return None
    if min(mamba_state_dim, mamba_head_dim, mamba_num_groups, mamba_chunk_size) < 1 or (
        mamba_num_heads is None and 2 * hidden_size % mamba_head_dim != 0
    ):
        return (
            f"sizes must be positive, heads integral (state {mamba_state_dim}, head {mamba_head_dim}, groups "
            f"{mamba_num_groups}, chunk {mamba_chunk_size}, hidden {hidden_size})"
        )
    heads = mamba_heads(hidden_size, mamba_num_heads, mamba_head_dim)
    if heads % (tp * cp) or mamba_num_groups % tp or heads % mamba_num_groups:
        return f"{heads} heads in {mamba_num_groups} groups cannot be shared (tp={tp}, cp={cp})"
    local = mamba_num_groups // tp
    if local % cp and cp % local:
        return f"{local} groups of a tensor-parallel rank cannot be shared by cp={cp}"
    return None


@hybrid_rule(
    "HY08",
    why="tensor- and context-parallel ranks share the heads of gated-delta layers evenly",
    fix="Change linear_num_key_heads and linear_num_value_heads, the sizes, or the parallel sizes.",
    fails={
        "hybrid_layer_pattern": "G",
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "tp": 2,
        "cp": 2,
    },
    passes={"linear_num_key_heads": 4, "linear_num_value_heads": 8},
)
def _gated_delta(
    hybrid_layer_pattern,
    linear_num_key_heads,
    linear_num_value_heads,
    linear_key_head_dim,
    linear_value_head_dim,
    linear_conv_kernel_dim,
    tp,
    cp,
):
    if "G" not in hybrid_layer_pattern:
        return None
    if min(linear_key_head_dim, linear_value_head_dim, linear_conv_kernel_dim) < 1:
        return (
            f"sizes must be positive (key {linear_key_head_dim}, value {linear_value_head_dim}, convolution "
            f"{linear_conv_kernel_dim})"
        )
    if (
        min(linear_num_key_heads, linear_num_value_heads) < 1
        or linear_num_value_heads % linear_num_key_heads
        or linear_num_key_heads % (tp * cp)
    ):
        return (
            f"{linear_num_key_heads} key heads and {linear_num_value_heads} value heads cannot be shared "
            f"(tp={tp}, cp={cp})"
        )
    return None


@hybrid_rule(
    "HY09",
    why="Megatron sums the gradient of their norm over the ranks only then, and its copies would drift apart "
    "without an error",
    fix="Set sequence_parallel=true.",
    fails={"hybrid_layer_pattern": "G*", "tp": 2},
    passes={"sequence_parallel": True},
)
def _gated_delta_sequence_parallel(hybrid_layer_pattern, tp, sequence_parallel):
    if "G" not in hybrid_layer_pattern or tp == 1 or sequence_parallel:
        return None
    return f"gated-delta layers under tensor parallelism (tp={tp}, sequence_parallel=false)"


@hybrid_rule(
    "HY12",
    why="the section has a field of that name, and one of the two values would be ignored",
    fix="Remove them.",
    fails={"transformer": {"mamba_state_dim": 64}},
    passes={"transformer": {}},
)
def _no_duplicate_fields(transformer):
    repeated = sorted({item.name for item in fields(MambaModelConfig)} & transformer.keys())
    if repeated:
        return f"{', '.join(repeated)}: set the field of the model section itself"
    return None


@hybrid_rule(
    "HY10",
    why="the attention of hybrid layers has none on the CPU, and is untested with them on a GPU",
    fix="Set softmax_type=vanilla.",
    fails={"softmax_type": "learnable"},
    passes={"softmax_type": "vanilla"},
)
def _softmax_other_than_vanilla(softmax_type):
    return f"is {softmax_type}" if softmax_type != "vanilla" else None


@hybrid_rule(
    "HY11",
    why="the pattern selects the layers with experts",
    fix="Leave it at 1, and write E for each layer with experts.",
    fails={"moe_layer_freq": 2},
    passes={"moe_layer_freq": 1},
)
def _experts_outside_pattern(moe_layer_freq):
    return f"is {moe_layer_freq}" if moe_layer_freq != 1 else None


@hybrid_rule(
    "HY13",
    why="hybrid attention layers are plain; Megatron's + layers are not supported",
    fix="Switch it off, or use a GPT.",
    fails={"multi_latent_attention": True},
    passes={"multi_latent_attention": False},
)
def _latent_attention_in_hybrid(multi_latent_attention):
    return "is on" if multi_latent_attention else None


@hybrid_rule(
    "HY14",
    why="Megatron Core applies the model's activation to their convolution, whose kernels support SiLU only",
    fix='Set activation_func="silu", or remove G from the pattern.',
    fails={"activation_func": "gelu", "hybrid_layer_pattern": "G-"},
    passes={"hybrid_layer_pattern": "M-"},
)
def _activation_of_gated_delta(activation_func, hybrid_layer_pattern):
    return (
        f"is {activation_func} with gated-delta layers"
        if "G" in hybrid_layer_pattern and activation_func != "silu"
        else None
    )


RULES: tuple[Rule, ...] = rules_in(globals())
"""Apply where the section has a hybrid_layer_pattern."""
