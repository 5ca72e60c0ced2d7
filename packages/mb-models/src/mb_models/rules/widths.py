"""Rules on widths that tensor-parallel ranks share evenly, and on combinations that no Megatron Core layer supports."""

from collections.abc import Sequence

from mb_schema.rule_kinds import SET, excludes, model_rule
from mb_schema.rules import Rule, rules_in


def _not_shared_evenly(width: int | None, ranks: int) -> bool:
    """Return whether ranks cannot share a width evenly; sizes below 1 are for rule P01."""
    return width is not None and ranks > 1 and width % ranks != 0


@model_rule(
    "G27",
    why="each tensor-parallel rank holds the same number of rows of the embedding",
    fix="Round vocab_size up to a multiple of tensor_model_parallel_size, or leave it unset to have the "
    "tokenizer's size padded.",
    fails={"vocab_size": 257, "tp": 2},
    passes={"vocab_size": 258},
)
def _vocabulary_not_shared_evenly(vocab_size, tp):
    return (
        f"{vocab_size} rows cannot be shared evenly (tp={tp})" if _not_shared_evenly(vocab_size, tp) else None
    )


@model_rule(
    "G59",
    why="the padding is a part of these rows",
    fix="Set vocab_size to the rows of the embedding, or unset unpadded_vocab_size.",
    fails={"unpadded_vocab_size": 257, "vocab_size": 256},
    passes={"vocab_size": 257},
)
def _more_tokens_than_rows(unpadded_vocab_size, vocab_size):
    if unpadded_vocab_size is None or 0 < unpadded_vocab_size <= (vocab_size or 0):
        return None
    return f"{unpadded_vocab_size} is not among the rows 1 to vocab_size={vocab_size}"


@model_rule(
    "G38",
    why="the embedding needs a row for each token",
    fix="Leave model.vocab_size unset to have the tokenizer's size padded, or set it to at least that size.",
    fails={"vocab_size": 256, "tokenizer_entries": 257},
    passes={"vocab_size": 320},
)
def _fewer_rows_than_entries(vocab_size, *, tokenizer_entries):
    if vocab_size is not None and vocab_size < tokenizer_entries:
        return f"{vocab_size} is smaller than the tokenizer's {tokenizer_entries}"
    return None


def has_dense_layers(
    experts: int | None, freq: int | Sequence[int], layers: int, pattern: str | None
) -> bool:
    """Return whether any layer has a dense MLP."""
    if pattern is not None:
        return "-" in pattern
    if experts is None:
        return True
    return (freq > 1 and layers > 1) if isinstance(freq, int) else 0 in freq


def has_attention(pattern: str | None) -> bool:
    """Return whether any layer has attention heads; a hybrid section names its layers in a pattern."""
    return pattern is None or "*" in pattern


@model_rule(
    "G28",
    why="each tensor-parallel rank holds an equal part of every matrix",
    fix="Set ffn_hidden_size (unset: four times hidden_size) to a multiple of tensor_model_parallel_size.",
    fails={"ffn_hidden_size": 129, "tp": 2, "moe_layer_freq": 1},
    passes={"num_moe_experts": 8},
)
def _dense_width_not_shared_evenly(
    ffn_hidden_size, hidden_size, tp, num_moe_experts, moe_layer_freq, num_layers, hybrid_layer_pattern
):
    if not has_dense_layers(num_moe_experts, moe_layer_freq, num_layers, hybrid_layer_pattern):
        return None
    inner = 4 * (hidden_size or 0) if ffn_hidden_size is None else ffn_hidden_size
    if _not_shared_evenly(inner, tp):
        return f"a dense layer's width of {inner} cannot be shared evenly (tp={tp})"
    return None


@model_rule(
    "G29",
    why="each expert-tensor-parallel rank (unset: each tensor-parallel rank) holds an equal part of every expert",
    fix="Set moe_ffn_hidden_size (unset: ffn_hidden_size) to a multiple of expert_tensor_parallel_size, or set "
    "expert_tensor_parallel_size=1.",
    fails={"moe_ffn_hidden_size": 129, "num_moe_experts": 8, "tp": 2},
    passes={"etp": 1},
)
def _expert_width_not_shared_evenly(
    moe_ffn_hidden_size, ffn_hidden_size, hidden_size, num_moe_experts, etp, tp
):
    inner = next(
        (size for size in (moe_ffn_hidden_size, ffn_hidden_size) if size is not None), 4 * (hidden_size or 0)
    )
    ranks = tp if etp is None else etp
    if num_moe_experts is None or not _not_shared_evenly(inner, ranks):
        return None
    return f"an expert's width of {inner} cannot be shared evenly (etp={etp}, tp={tp})"


@model_rule(
    "G30",
    why="shared experts are split over the tensor-parallel ranks, independently of the other experts",
    fix="Set it to a multiple of tensor_model_parallel_size.",
    fails={"moe_shared_expert_intermediate_size": 129, "num_moe_experts": 8, "tp": 2},
    passes={"moe_shared_expert_intermediate_size": 128},
)
def _shared_expert_width_not_shared_evenly(moe_shared_expert_intermediate_size, num_moe_experts, tp):
    if num_moe_experts is not None and _not_shared_evenly(moe_shared_expert_intermediate_size, tp):
        return f"{moe_shared_expert_intermediate_size} cannot be shared evenly (tp={tp})"
    return None


@model_rule(
    "G31",
    why="local layers split the down projections over the tensor-parallel ranks",
    fix="Make q_lora_rank and the sum of kv_lora_rank and qk_pos_emb_head_dim multiples of "
    'tensor_model_parallel_size, or use transformer_impl "transformer_engine" on a GPU.',
    fails={
        "q_lora_rank": 24,
        "kv_lora_rank": 9,
        "qk_pos_emb_head_dim": 8,
        "tp": 2,
        "multi_latent_attention": True,
        "transformer_impl": "local",
    },
    passes={"kv_lora_rank": 8},
)
def _latent_widths_not_shared_evenly(
    q_lora_rank, kv_lora_rank, qk_pos_emb_head_dim, tp, multi_latent_attention, transformer_impl
):
    if not multi_latent_attention or transformer_impl != "local":
        return None
    widths = {
        "q_lora_rank": q_lora_rank,
        "kv_lora_rank + qk_pos_emb_head_dim": kv_lora_rank + qk_pos_emb_head_dim,
    }
    wrong = [f"{name}={width}" for name, width in widths.items() if _not_shared_evenly(width, tp)]
    return f"{', '.join(wrong)} cannot be shared evenly (tp={tp})" if wrong else None


@model_rule(
    "G32",
    why="channels are rotated in pairs",
    fix="Give heads an even width (kv_channels, or hidden_size / num_attention_heads), or lower rotary_percent.",
    fails={
        "position_embedding_type": "rope",
        "rotary_percent": 1.0,
        "kv_channels": 5,
        "num_attention_heads": 8,
    },
    passes={"rotary_percent": 0.5},
)
def _odd_number_of_rotated_channels(
    position_embedding_type,
    rotary_percent,
    kv_channels,
    hidden_size,
    num_attention_heads,
    multi_latent_attention,
    hybrid_layer_pattern,
):
    if not has_attention(hybrid_layer_pattern):
        return None
    if (
        position_embedding_type not in ("rope", "yarn")
        or multi_latent_attention
        or num_attention_heads < 1
        or not 0 <= rotary_percent <= 1
    ):
        return None
    width = hidden_size // num_attention_heads if kv_channels is None else kv_channels
    rotated = int(width * rotary_percent) if rotary_percent < 1 else width
    if rotated % 2 and rotated >= width:
        return f"{position_embedding_type} rotates {rotated} channels of a head of {width}"
    return None


@model_rule(
    "G32a",
    why="latent attention rotates these channels in pairs",
    fix="Set an even number.",
    fails={"qk_pos_emb_head_dim": 3, "multi_latent_attention": True, "rope_type": "yarn"},
    passes={"qk_pos_emb_head_dim": 4},
)
def _odd_number_of_rotated_latent_channels(
    qk_pos_emb_head_dim, multi_latent_attention, rope_type, rotary_percent
):
    all_rotated = rope_type == "yarn" or rotary_percent == 1  # YaRN has no rotary_percent here
    return (
        f"is {qk_pos_emb_head_dim}"
        if multi_latent_attention and all_rotated and qk_pos_emb_head_dim % 2
        else None
    )


@model_rule(
    "G34",
    why="the kernel that also applies routing weights exists for gated silu without biases and gated quick_gelu only",
    fix="Set bias_activation_fusion=false.",
    fails={
        "bias_activation_fusion": True,
        "num_moe_experts": 4,
        "activation_func": "gelu",
        "gated_linear_unit": True,
    },
    passes={"activation_func": "silu"},
)
def _no_fused_activation_of_experts(
    bias_activation_fusion, num_moe_experts, activation_func, gated_linear_unit, add_bias_linear
):
    silu = activation_func == "silu" and not add_bias_linear
    fused = gated_linear_unit and (silu or activation_func == "quick_gelu")
    if not bias_activation_fusion or num_moe_experts is None or fused:
        return None
    return (
        f"is on with experts and activation_func={activation_func}, gated_linear_unit={gated_linear_unit}, "
        f"add_bias_linear={add_bias_linear}"
    )


@model_rule(
    "G35",
    why="Megatron Core computes the loss from logits that are split over the tensor-parallel ranks, and fails or "
    "returns a wrong loss on gathered ones",
    fix="Set model.parallel_output=true.",
    fails={"parallel_output": False},
    passes={"parallel_output": True},
)
def _logits_gathered_in_training(parallel_output, train__train_iters):
    return None if parallel_output else "is off during training"


def _fewer_rows_than_tokens(vocab_size, tokenizer__vocab_size):
    if vocab_size is None or tokenizer__vocab_size is None or vocab_size >= tokenizer__vocab_size:
        return None
    return f"{vocab_size} is below the {tokenizer__vocab_size} entries of the tokenizer"


@model_rule(
    "V243a",
    why="the tokenizer of the dataset has this number of entries, and every token requires a row of the embedding",
    fix="Leave model.vocab_size unset, increase it, or lower dataset.vocab_size.",
    fails={"vocab_size": 100, "dataset__vocab_size": 4096},
    passes={"vocab_size": 257, "tokenizer__tokenizer_type": "ByteTokenizer"},
)
def _fewer_rows_than_tokens_of_dataset(vocab_size, dataset__vocab_size, tokenizer__tokenizer_type):
    return None if tokenizer__tokenizer_type else _fewer_rows_than_tokens(vocab_size, dataset__vocab_size)


RULES: tuple[Rule, ...] = (
    *rules_in(globals()),
    excludes(
        "G33",
        {
            "model.moe_shared_expert_intermediate_size": True,
            "model.num_moe_experts": SET,
            "model.add_bias_linear": True,
        },
        why="Megatron Core's shared experts have no biases",
        fix="Set add_bias_linear=false, or leave moe_shared_expert_intermediate_size unset.",
        fails={"model.moe_shared_expert_intermediate_size": 64, "model.num_moe_experts": 4},
    ),
    excludes(
        "K42",
        {"model.rotary_interleaved": True, "model.multi_latent_attention": True},
        why="latent attention rotates the two halves of a head",
        fix="Set rotary_interleaved=false.",
    ),
    excludes(
        "G58",
        {"model.rotary_interleaved": True, "model.position_embedding_type": "yarn"},
        why="Megatron Core's YaRN rotates the two halves of a head",
        fix="Set rotary_interleaved=false, or position_embedding_type=rope.",
    ),
    model_rule(
        "V243",
        why="every token requires a row of the embedding",
        fix="Leave model.vocab_size unset, or increase it.",
        fails={"vocab_size": 1000, "tokenizer__vocab_size": 1001},
        passes={"vocab_size": 1024},
    )(_fewer_rows_than_tokens),
)
