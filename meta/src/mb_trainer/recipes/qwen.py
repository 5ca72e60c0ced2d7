"""Recipes of Qwen3, in their published sizes."""

from collections.abc import Mapping
from typing import Any

from mb_config.trainer_api import recipe
from mb_trainer.config import CommOverlapConfig, ConfigContainer, GPTModelConfig
from mb_trainer.recipes.pretraining import MODERN, pretraining

QWEN3: Mapping[str, Any] = {
    **MODERN,
    "kv_channels": 128,
    "qk_layernorm": True,
    "layernorm_epsilon": 1e-6,
    "rotary_base": 1_000_000,
    "seq_length": 4096,
    "vocab_size": 151_936,
}
EXPERTS: Mapping[str, Any] = {
    **QWEN3,
    "num_query_groups": 4,
    "num_moe_experts": 128,
    "moe_router_topk": 8,
    "moe_router_load_balancing_type": "aux_loss",
    "moe_aux_loss_coeff": 1e-3,
    "moe_token_dispatcher_type": "alltoall",
    "moe_grouped_gemm": True,
    "moe_permute_fusion": True,
    "num_attention_heads": 32,
}


@recipe("Qwen3 0.6B, 4,096 tokens; 1 GPU and multiples")
def qwen3_0_6b() -> ConfigContainer:
    """Build Qwen3 0.6B, whose output layer is its embedding, for one GPU with 80 GB and multiples."""
    return _small(hidden_size=1024, ffn_hidden_size=3072, learning_rate=6e-4)


@recipe("Qwen3 1.7B, 4,096 tokens; 1 GPU and multiples")
def qwen3_1_7b() -> ConfigContainer:
    """Build Qwen3 1.7B, whose output layer is its embedding, for one GPU with 80 GB and multiples."""
    return _small(hidden_size=2048, ffn_hidden_size=6144, learning_rate=4e-4)


def _small(*, hidden_size: int, ffn_hidden_size: int, learning_rate: float) -> ConfigContainer:
    model = GPTModelConfig(
        num_layers=28,
        hidden_size=hidden_size,
        ffn_hidden_size=ffn_hidden_size,
        num_attention_heads=16,
        num_query_groups=8,
        share_embeddings_and_output_weights=True,
        **QWEN3,
    )
    return pretraining(model, global_batch_size=128, learning_rate=learning_rate)


@recipe("Qwen3 8B, 4,096 tokens; 8 GPUs and multiples: TP 2", processes=8)
def qwen3_8b() -> ConfigContainer:
    """Build Qwen3 8B for multiples of 8 GPUs with 80 GB: TP 2 with sequence parallelism."""
    model = GPTModelConfig(
        num_layers=36,
        hidden_size=4096,
        ffn_hidden_size=12288,
        num_attention_heads=32,
        num_query_groups=8,
        tensor_model_parallel_size=2,
        sequence_parallel=True,
        **QWEN3,
    )
    return pretraining(
        model,
        global_batch_size=512,
        learning_rate=3e-4,
        overlap=CommOverlapConfig(tp_comm_overlap=True),
    )


@recipe("Qwen3 30B-A3B, 4,096 tokens; 16 GPUs and multiples: EP 16", processes=16)
def qwen3_30b_a3b() -> ConfigContainer:
    """Build Qwen3 30B-A3B for multiples of 16 GPUs with 80 GB: EP 16."""
    model = GPTModelConfig(
        num_layers=48,
        hidden_size=2048,
        ffn_hidden_size=6144,
        moe_ffn_hidden_size=768,
        expert_model_parallel_size=16,
        recompute_granularity="selective",
        recompute_modules=["layernorm", "moe_act"],
        **EXPERTS,
    )
    return pretraining(model, global_batch_size=512, learning_rate=3e-4)


@recipe("Qwen3 235B-A22B, 4,096 tokens; 256 GPUs and multiples: TP 2, PP 8, EP 32", processes=256)
def qwen3_235b_a22b() -> ConfigContainer:
    """Build Qwen3 235B-A22B for multiples of 256 GPUs with 80 GB: TP 2, PP 8 with 4 virtual stages, EP 32."""
    model = GPTModelConfig(
        num_layers=94,
        hidden_size=4096,
        ffn_hidden_size=12288,
        moe_ffn_hidden_size=1536,
        tensor_model_parallel_size=2,
        sequence_parallel=True,
        pipeline_model_parallel_size=8,
        virtual_pipeline_model_parallel_size=4,
        account_for_embedding_in_pipeline_split=True,
        account_for_loss_in_pipeline_split=True,
        expert_model_parallel_size=32,
        expert_tensor_parallel_size=1,
        recompute_granularity="selective",
        recompute_modules=["layernorm", "moe_act"],
        **{**EXPERTS, "num_attention_heads": 64},
    )
    return pretraining(model, global_batch_size=2048, learning_rate=3e-4)
