"""Rules on widths that tensor-parallel ranks share evenly, and on combinations that no Megatron Core layer supports."""

from collections.abc import Sequence

from mb_models.rules.model_rule import model_rule
from mb_schema.rule_kinds import SET, excludes, rule
from mb_schema.rules import Rule


def _not_shared_evenly(width: int | None, ranks: int) -> bool:
    """Return whether ranks cannot share a width evenly; sizes below 1 are for rule P01."""
    return width is not None and ranks > 1 and width % ranks != 0


def _vocabulary_not_shared_evenly(rows: int | None, tp: int) -> str | None:
    return f"{rows} rows cannot be shared evenly (tp={tp})" if _not_shared_evenly(rows, tp) else None


def _fewer_rows_than_entries(rows: int | None, entries: int) -> str | None:
    return (
        f"{rows} is smaller than the tokenizer's {entries}" if rows is not None and rows < entries else None
    )


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


def _dense_width_not_shared_evenly(
    width: int | None,
    hidden: int,
    tp: int,
    experts: int | None,
    freq: int | Sequence[int],
    layers: int,
    pattern: str | None,
) -> str | None:
    if not has_dense_layers(experts, freq, layers, pattern):
        return None
    inner = 4 * (hidden or 0) if width is None else width
    return (
        f"a dense layer's width of {inner} cannot be shared evenly (tp={tp})"
        if _not_shared_evenly(inner, tp)
        else None
    )


def _expert_width_not_shared_evenly(
    width: int | None, dense: int | None, hidden: int, experts: int | None, etp: int | None, tp: int
) -> str | None:
    inner = next((size for size in (width, dense) if size is not None), 4 * (hidden or 0))
    ranks = tp if etp is None else etp
    if experts is None or not _not_shared_evenly(inner, ranks):
        return None
    return f"an expert's width of {inner} cannot be shared evenly (etp={etp}, tp={tp})"


def _shared_expert_width_not_shared_evenly(width: int | None, experts: int | None, tp: int) -> str | None:
    return (
        f"{width} cannot be shared evenly (tp={tp})"
        if experts is not None and _not_shared_evenly(width, tp)
        else None
    )


def _latent_widths_not_shared_evenly(
    queries: int | None, keys: int, rotated: int, tp: int, latent: bool, impl: str
) -> str | None:
    if not latent or impl != "local":
        return None
    widths = {"q_lora_rank": queries, "kv_lora_rank + qk_pos_emb_head_dim": keys + rotated}
    wrong = [f"{name}={width}" for name, width in widths.items() if _not_shared_evenly(width, tp)]
    return f"{', '.join(wrong)} cannot be shared evenly (tp={tp})" if wrong else None


def _odd_number_of_rotated_channels(
    kind: str,
    percent: float,
    channels: int | None,
    hidden: int,
    heads: int,
    latent: bool,
    pattern: str | None,
) -> str | None:
    if not has_attention(pattern):
        return None
    if kind not in ("rope", "yarn") or latent or heads < 1 or not 0 <= percent <= 1:
        return None
    width = hidden // heads if channels is None else channels
    rotated = int(width * percent) if percent < 1 else width
    return (
        f"{kind} rotates {rotated} channels of a head of {width}"
        if rotated % 2 and rotated >= width
        else None
    )


def _no_fused_activation_of_experts(
    fused: bool, experts: int | None, activation: str, gated: bool
) -> str | None:
    if not fused or experts is None or (gated and activation in ("silu", "quick_gelu")):
        return None
    return f"is on with experts and activation_func={activation}, gated_linear_unit={gated}"


def _logits_gathered_in_training(split: bool, iters: int | None) -> str | None:
    return None if split else "is off during training"


def _fewer_rows_than_tokens(size: int | None, tokens: int | None) -> str | None:
    if size is None or tokens is None or size >= tokens:
        return None
    return f"{size} is below the {tokens} entries of the tokenizer"


_TP = "tensor_model_parallel_size"
_SHARES = "each tensor-parallel rank holds an equal part of every matrix"

RULES: tuple[Rule, ...] = (
    model_rule(
        "G27",
        ("vocab_size", _TP),
        _vocabulary_not_shared_evenly,
        why="each tensor-parallel rank holds the same number of rows of the embedding",
        fix="Round vocab_size up to a multiple of tensor_model_parallel_size, or leave it unset to have the "
        "tokenizer's size padded.",
        fails=(257, 2),
        passes=(258, 2),
    ),
    model_rule(
        "G28",
        (
            "ffn_hidden_size",
            "hidden_size",
            _TP,
            "num_moe_experts",
            "moe_layer_freq",
            "num_layers",
            "hybrid_layer_pattern",
        ),
        _dense_width_not_shared_evenly,
        why=_SHARES,
        fix="Set ffn_hidden_size (unset: four times hidden_size) to a multiple of tensor_model_parallel_size.",
        fails=(129, 64, 2, None, 1, 4, None),
        passes=(129, 64, 2, 8, 1, 4, None),
    ),
    model_rule(
        "G29",
        (
            "moe_ffn_hidden_size",
            "ffn_hidden_size",
            "hidden_size",
            "num_moe_experts",
            "expert_tensor_parallel_size",
            _TP,
        ),
        _expert_width_not_shared_evenly,
        why="each expert-tensor-parallel rank (unset: each tensor-parallel rank) holds an equal part of every expert",
        fix="Set moe_ffn_hidden_size (unset: ffn_hidden_size) to a multiple of expert_tensor_parallel_size, or set "
        "expert_tensor_parallel_size=1.",
        fails=(129, 128, 64, 8, None, 2),
        passes=(129, 128, 64, 8, 1, 2),
    ),
    model_rule(
        "G30",
        ("moe_shared_expert_intermediate_size", "num_moe_experts", _TP),
        _shared_expert_width_not_shared_evenly,
        why="shared experts are split over the tensor-parallel ranks, independently of the other experts",
        fix="Set it to a multiple of tensor_model_parallel_size.",
        fails=(129, 8, 2),
        passes=(128, 8, 2),
    ),
    model_rule(
        "G31",
        (
            "q_lora_rank",
            "kv_lora_rank",
            "qk_pos_emb_head_dim",
            _TP,
            "multi_latent_attention",
            "transformer_impl",
        ),
        _latent_widths_not_shared_evenly,
        why="local layers split the down projections over the tensor-parallel ranks",
        fix="Make q_lora_rank and the sum of kv_lora_rank and qk_pos_emb_head_dim multiples of "
        'tensor_model_parallel_size, or use transformer_impl "transformer_engine" on a GPU.',
        fails=(24, 9, 8, 2, True, "local"),
        passes=(24, 8, 8, 2, True, "local"),
    ),
    model_rule(
        "G32",
        (
            "position_embedding_type",
            "rotary_percent",
            "kv_channels",
            "hidden_size",
            "num_attention_heads",
            "multi_latent_attention",
            "hybrid_layer_pattern",
        ),
        _odd_number_of_rotated_channels,
        why="channels are rotated in pairs",
        fix="Give heads an even width (kv_channels, or hidden_size / num_attention_heads), or lower rotary_percent.",
        fails=("rope", 1.0, 5, 32, 8, False, None),
        passes=("rope", 0.5, 5, 32, 8, False, None),
    ),
    excludes(
        "G33",
        {
            "model.moe_shared_expert_intermediate_size": True,
            "model.num_moe_experts": SET,
            "model.add_bias_linear": True,
        },
        why="Megatron Core's shared experts have no biases",
        fix="Set add_bias_linear=false, or leave moe_shared_expert_intermediate_size unset.",
        fails=(64, 4, True),
        passes=(64, 4, False),
    ),
    model_rule(
        "G34",
        ("bias_activation_fusion", "num_moe_experts", "activation_func", "gated_linear_unit"),
        _no_fused_activation_of_experts,
        why="the kernel that also applies the routing weights exists for gated silu and gated quick_gelu only",
        fix="Set bias_activation_fusion=false.",
        fails=(True, 4, "gelu", True),
        passes=(True, 4, "silu", True),
    ),
    rule(
        "G35",
        ("model.parallel_output", "train.train_iters"),
        _logits_gathered_in_training,
        why="Megatron Core computes the loss from logits that are split over the tensor-parallel ranks, and fails or "
        "returns a wrong loss on gathered ones",
        fix="Set model.parallel_output=true.",
        fails=(False, 10),
        passes=(True, 10),
    ),
    rule(
        "G38",
        ("model.vocab_size", "facts.tokenizer_entries"),
        _fewer_rows_than_entries,
        why="the embedding needs a row for each token",
        fix="Leave model.vocab_size unset to have the tokenizer's size padded, or set it to at least that size.",
        fails=(256, 257),
        passes=(320, 257),
    ),
    excludes(
        "K42",
        {"model.rotary_interleaved": True, "model.multi_latent_attention": True},
        why="latent attention rotates the two halves of a head",
        fix="Set rotary_interleaved=false.",
        fails=(True, True),
        passes=(False, True),
    ),
    rule(
        "V243",
        ("model.vocab_size", "tokenizer.vocab_size"),
        _fewer_rows_than_tokens,
        why="every token requires a row of the embedding",
        fix="Leave model.vocab_size unset, or increase it.",
        fails=(1000, 1001),
        passes=(1024, 1001),
    ),
    rule(
        "V243a",
        ("model.vocab_size", "dataset.vocab_size", "tokenizer.tokenizer_type"),
        lambda rows, entries, tied: None if tied else _fewer_rows_than_tokens(rows, entries),
        why="the tokenizer of the dataset has this number of entries, and every token requires a row of the embedding",
        fix="Leave model.vocab_size unset, increase it, or lower dataset.vocab_size.",
        fails=(100, 4096),
        passes=(257, 4096, "ByteTokenizer"),
    ),
)
