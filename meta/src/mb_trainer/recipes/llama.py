"""Recipes of Llama 3.1 and 3.2, in their published sizes."""

from collections.abc import Mapping
from typing import Any

from mb_config.trainer_api import recipe
from mb_overlap import (
    userbuffers_bf16_h100_h8192_tp4_mbs1_seqlen8192,
    userbuffers_bf16_h100_h16384_tp8_cp2_mbs1_seqlen8192,
)
from mb_trainer.config import CommOverlapConfig, ConfigContainer, GPTModelConfig
from mb_trainer.recipes.pretraining import MODERN, pretraining

LLAMA: Mapping[str, Any] = {
    **MODERN,
    "num_query_groups": 8,
    "rotary_base": 500_000,
    "rope_scaling": True,
    "seq_length": 8192,
    "vocab_size": 128_256,
}


@recipe("Llama 3.2 1B, 8,192 tokens; 1 GPU and multiples")
def llama32_1b() -> ConfigContainer:
    """Build Llama 3.2 1B, whose output layer is its embedding, for one GPU with 80 GB and multiples."""
    model = GPTModelConfig(
        num_layers=16,
        hidden_size=2048,
        ffn_hidden_size=8192,
        num_attention_heads=32,
        kv_channels=64,
        rope_scaling_factor=32.0,
        share_embeddings_and_output_weights=True,
        **LLAMA,
    )
    return pretraining(model, global_batch_size=128, learning_rate=5e-4)


@recipe("Llama 3.1 8B, 8,192 tokens; 8 GPUs and multiples: TP 2", processes=8)
def llama31_8b() -> ConfigContainer:
    """Build Llama 3.1 8B for multiples of 8 GPUs with 80 GB: TP 2 with sequence parallelism."""
    model = GPTModelConfig(
        num_layers=32,
        hidden_size=4096,
        ffn_hidden_size=14336,
        num_attention_heads=32,
        tensor_model_parallel_size=2,
        sequence_parallel=True,
        **LLAMA,
    )
    return pretraining(
        model,
        global_batch_size=512,
        learning_rate=3e-4,
        overlap=CommOverlapConfig(tp_comm_overlap=True),
    )


@recipe("Llama 3.1 70B, 8,192 tokens; 64 GPUs and multiples: TP 4, PP 4, CP 2", processes=64)
def llama31_70b() -> ConfigContainer:
    """Build Llama 3.1 70B for multiples of 64 GPUs with 80 GB: TP 4, PP 4 with 5 virtual stages, CP 2."""
    model = GPTModelConfig(
        num_layers=80,
        hidden_size=8192,
        ffn_hidden_size=28672,
        num_attention_heads=64,
        tensor_model_parallel_size=4,
        pipeline_model_parallel_size=4,
        virtual_pipeline_model_parallel_size=5,
        context_parallel_size=2,
        sequence_parallel=True,
        **LLAMA,
    )
    return pretraining(
        model,
        global_batch_size=512,
        learning_rate=1.5e-4,
        overlap=CommOverlapConfig(
            tp_comm_overlap=True, tp_comm_overlap_cfg=userbuffers_bf16_h100_h8192_tp4_mbs1_seqlen8192
        ),
    )


@recipe("Llama 3.1 405B, 8,192 tokens; 1,024 to 8,192 GPUs, powers of two: TP 8, PP 8, CP 2", processes=1024)
def llama31_405b() -> ConfigContainer:
    """Build Llama 3.1 405B for multiples of 1,024 GPUs with 80 GB: TP 8, PP 8 with 8 virtual stages, CP 2."""
    model = GPTModelConfig(
        num_layers=126,
        hidden_size=16384,
        ffn_hidden_size=53248,
        num_attention_heads=128,
        tensor_model_parallel_size=8,
        pipeline_model_parallel_size=8,
        virtual_pipeline_model_parallel_size=8,
        account_for_embedding_in_pipeline_split=True,
        account_for_loss_in_pipeline_split=True,
        context_parallel_size=2,
        sequence_parallel=True,
        **LLAMA,
    )
    return pretraining(
        model,
        global_batch_size=512,
        learning_rate=8e-5,
        overlap=CommOverlapConfig(
            tp_comm_overlap=True, tp_comm_overlap_cfg=userbuffers_bf16_h100_h16384_tp8_cp2_mbs1_seqlen8192
        ),
    )
