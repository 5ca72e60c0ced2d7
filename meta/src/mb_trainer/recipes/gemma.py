"""Recipes of Gemma, Gemma 2 and Gemma 3 (text), in their published sizes."""

from collections.abc import Mapping
from typing import Any

from mb_config.trainer_api import recipe
from mb_trainer.config import ConfigContainer, GPTModelConfig
from mb_trainer.recipes.pretraining import MODERN, pretraining

GEMMA: Mapping[str, Any] = {
    **MODERN,
    "activation_func": "fast_gelu",
    "bias_activation_fusion": False,  # Megatron Core has no kernel for this activation
    "layernorm_zero_centered_gamma": True,
    "layernorm_epsilon": 1e-6,
    "kv_channels": 256,
    "share_embeddings_and_output_weights": True,
    "seq_length": 4096,
    "vocab_size": 256_000,
}
GEMMA2: Mapping[str, Any] = {
    **GEMMA,
    "norm_position": "pre_and_post",
    "softmax_scale": 256**-0.5,
    "window_size": (4095, 0),
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
    "recompute_granularity": "selective",  # attention with a soft cap keeps the scores of a layer
}
GEMMA3: Mapping[str, Any] = {
    **GEMMA,
    "norm_position": "pre_and_post",
    "softmax_scale": 256**-0.5,
    "qk_layernorm": True,
    "rotary_base": 1_000_000,
    "rotary_base_local": 10_000,
    "vocab_size": 262_144,
}


@recipe("Gemma 2B, 4,096 tokens; 1 GPU and multiples")
def gemma_2b() -> ConfigContainer:
    """Build Gemma 2B for one GPU with 80 GB and multiples."""
    model = GPTModelConfig(
        num_layers=18,
        hidden_size=2048,
        ffn_hidden_size=16384,
        num_attention_heads=8,
        num_query_groups=1,
        embedding_multiplier=2048**0.5,
        **GEMMA,
    )
    return _pretraining(model, learning_rate=3e-4)


@recipe("Gemma 2 2B, 4,096 tokens; 1 GPU and multiples")
def gemma2_2b() -> ConfigContainer:
    """Build Gemma 2 2B for one GPU with 80 GB and multiples: scores are recomputed."""
    model = GPTModelConfig(
        num_layers=26,
        hidden_size=2304,
        ffn_hidden_size=9216,
        num_attention_heads=8,
        num_query_groups=4,
        embedding_multiplier=2304**0.5,
        window_attn_skip_freq=2,
        **GEMMA2,
    )
    return _pretraining(model, learning_rate=3e-4)


@recipe("Gemma 2 9B, 4,096 tokens; 8 GPUs and multiples: TP 2", processes=8)
def gemma2_9b() -> ConfigContainer:
    """Build Gemma 2 9B for multiples of 8 GPUs with 80 GB: TP 2 with sequence parallelism, scores are recomputed."""
    model = GPTModelConfig(
        num_layers=42,
        hidden_size=3584,
        ffn_hidden_size=14336,
        num_attention_heads=16,
        num_query_groups=8,
        embedding_multiplier=3584**0.5,
        window_attn_skip_freq=2,
        tensor_model_parallel_size=2,
        sequence_parallel=True,
        **GEMMA2,
    )
    return _pretraining(model, learning_rate=2e-4)


@recipe("Gemma 3 1B (text), 4,096 tokens; 1 GPU and multiples")
def gemma3_1b() -> ConfigContainer:
    """Build Gemma 3 1B, whose every sixth layer has no window, for one GPU with 80 GB and multiples."""
    model = GPTModelConfig(
        num_layers=26,
        hidden_size=1152,
        ffn_hidden_size=6912,
        num_attention_heads=4,
        num_query_groups=1,
        embedding_multiplier=1152**0.5,
        window_size=(511, 0),
        window_attn_skip_freq=[int(layer % 6 != 0) for layer in range(1, 27)],
        **GEMMA3,
    )
    return _pretraining(model, learning_rate=5e-4)


def _pretraining(model: GPTModelConfig, *, learning_rate: float) -> ConfigContainer:
    return pretraining(model, global_batch_size=256, learning_rate=learning_rate)
