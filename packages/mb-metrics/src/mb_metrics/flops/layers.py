"""FLOPs per token of each kind of layer, forward and backward: 6 per weight and token."""

from mb_metrics.flops.model_shape import FlopsModelShape
from mb_metrics.flops.per_token import FlopsPerToken

_CONVOLUTION = 4
"""Width of Mamba's convolution; not configurable."""


def attention(shape: FlopsModelShape, *, positions: float) -> FlopsPerToken:
    """Count self-attention (multi-head, grouped or latent); a token attends to `positions` on average.

    Source: see `mb_metrics.flops.per_token`.
    """
    if shape.flag("multi_latent_attention"):
        return latent_attention(shape, positions=positions)
    query = shape.size("num_attention_heads") * shape.head
    key = shape.groups * shape.head
    gate = query if shape.flag("attention_output_gate") else 0
    return FlopsPerToken(
        attention_linear=6 * shape.hidden * (query + gate + 2 * key + query),
        attention_core=6 * positions * 2 * query,
    )


def latent_attention(shape: FlopsModelShape, *, positions: float) -> FlopsPerToken:
    """Count multi-head latent attention in training, where keys and values are expanded.

    Source: the products of DeepSeek-AI, "DeepSeek-V2" (2024), section 2.1.
    """
    heads, hidden, kv_rank = shape.size("num_attention_heads"), shape.hidden, shape.size("kv_lora_rank")
    plain, rotary = shape.size("qk_head_dim"), shape.size("qk_pos_emb_head_dim")
    value, query = shape.size("v_head_dim"), heads * (plain + rotary)
    q_rank = shape.value("q_lora_rank")
    query_weights = hidden * query if q_rank is None else q_rank * (hidden + query)
    key_value_weights = hidden * (kv_rank + rotary) + kv_rank * heads * (plain + value)
    return FlopsPerToken(
        attention_linear=6 * (query_weights + key_value_weights + heads * value * hidden),
        attention_core=6 * positions * (query + heads * value),
    )


def cross_attention(shape: FlopsModelShape, *, encoder_tokens: float) -> FlopsPerToken:
    """Count the attention of one decoder token to all encoder tokens, excluding the encoder's keys and values."""
    query = shape.size("num_attention_heads") * shape.head
    return FlopsPerToken(
        attention_linear=6 * shape.hidden * 2 * query, attention_core=6 * encoder_tokens * 2 * query
    )


def cross_key_value(shape: FlopsModelShape) -> FlopsPerToken:
    """Count the key and value projections of cross-attention for one encoder token."""
    return FlopsPerToken(attention_linear=6 * shape.hidden * 2 * shape.groups * shape.head)


def mlp(shape: FlopsModelShape) -> FlopsPerToken:
    """Count a dense feed-forward layer."""
    return FlopsPerToken(mlp=6 * shape.hidden * shape.ffn * shape.matrices)


def mixture(shape: FlopsModelShape) -> FlopsPerToken:
    """Count a mixture-of-experts layer without token dropping: router, selected experts and shared experts."""
    hidden, latent = shape.hidden, shape.value("moe_latent_size")
    per_expert = shape.size("moe_ffn_hidden_size", shape.ffn) * shape.matrices
    shared = shape.value("moe_shared_expert_intermediate_size") or 0
    gate = hidden if shared and shape.flag("moe_shared_expert_gate") else 0
    width = hidden if latent is None else latent
    return FlopsPerToken(
        router=6 * hidden * shape.size("num_moe_experts"),
        experts=6 * shape.size("moe_router_topk", 2) * width * per_expert
        + (0 if latent is None else 6 * 2 * hidden * latent),
        shared_experts=6 * (hidden * shared * shape.matrices + gate),
    )


def mamba(shape: FlopsModelShape) -> FlopsPerToken:
    """Count a Mamba-2 layer: projections, convolution, and the scan as a recurrence.

    The scan adds the outer product of input and B to a state of head_dim x state_dim per head, and reads it with
    C: two products of that size. Source: Dao and Gu, "Transformers are SSMs" (2024), equation 1. Chunked kernels do
    more work. Megatron counts 7 operations per element of the state where this function counts 4, because Megatron
    includes the decay, which is not a matrix product.
    """
    hidden, head = shape.hidden, shape.size("mamba_head_dim", 64)
    heads = shape.size("mamba_num_heads", 2 * hidden // head)
    inner, state = heads * head, shape.size("mamba_state_dim", 128)
    groups = shape.size("mamba_num_groups", 8)
    return FlopsPerToken(
        mamba=6 * hidden * (2 * inner + 2 * groups * state + heads)
        + 6 * (inner + 2 * groups * state) * _CONVOLUTION
        + 6 * 2 * inner * state
        + 6 * inner * hidden
    )


def gated_delta_net(shape: FlopsModelShape) -> FlopsPerToken:
    """Count a gated-delta-net layer: projections, convolution, and the delta rule as a recurrence.

    The rule reads the state with the key, adds the outer product of key and correction, and reads it with the query:
    three products of key width x value width per value head. Source: Yang et al., "Gated Delta
    Networks" (2024), equation 10. Chunked kernels do more work.
    """
    hidden = shape.hidden
    key_head, value_head = shape.size("linear_key_head_dim", 128), shape.size("linear_value_head_dim", 128)
    keys = key_head * shape.size("linear_num_key_heads", 16)
    value_heads = shape.size("linear_num_value_heads", 32)
    values = value_head * value_heads
    return FlopsPerToken(
        linear_attention=6 * hidden * (2 * keys + 2 * values + 2 * value_heads)
        + 6 * (2 * keys + values) * shape.size("linear_conv_kernel_dim", 4)
        + 6 * 3 * value_heads * key_head * value_head
        + 6 * values * hidden
    )
