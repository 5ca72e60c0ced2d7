"""Recipe of DeepSeek-V3, in its published size."""

from collections.abc import Mapping
from typing import Any

from mb_config.trainer_api import recipe
from mb_trainer.config import ConfigContainer, GPTModelConfig
from mb_trainer.recipes.pretraining import MODERN, pretraining

ATTENTION: Mapping[str, Any] = {
    "multi_latent_attention": True,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_head_dim": 128,
    "qk_pos_emb_head_dim": 64,
    "v_head_dim": 128,
    "qk_layernorm": True,
    "rope_type": "yarn",
    "rotary_scaling_factor": 40,
    "original_max_position_embeddings": 4096,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
EXPERTS: Mapping[str, Any] = {
    "num_moe_experts": 256,
    "moe_layer_freq": [0] * 3 + [1] * 58,
    "moe_ffn_hidden_size": 2048,
    "moe_shared_expert_intermediate_size": 2048,
    "moe_router_topk": 8,
    "moe_router_score_function": "sigmoid",
    "moe_router_pre_softmax": True,
    "moe_router_num_groups": 8,
    "moe_router_group_topk": 4,
    "moe_router_topk_scaling_factor": 2.5,
    "moe_router_enable_expert_bias": True,
    "moe_router_dtype": "fp32",
    "moe_router_load_balancing_type": "seq_aux_loss",
    "moe_aux_loss_coeff": 1e-4,
    "moe_token_dispatcher_type": "alltoall",
    "moe_grouped_gemm": True,
    "moe_permute_fusion": True,
}


@recipe(
    "DeepSeek-V3 671B, 4,096 tokens, one further token; 1,024 or 2,048 GPUs: TP 2, PP 16, EP 64",
    processes=1024,
)
def deepseek_v3() -> ConfigContainer:
    """Build DeepSeek-V3 with one MTP layer for multiples of 1,024 GPUs with 80 GB: TP 2, PP 16, EP 64."""
    model = GPTModelConfig(
        num_layers=61,
        hidden_size=7168,
        ffn_hidden_size=18432,
        num_attention_heads=128,
        layernorm_epsilon=1e-6,
        init_method_std=0.006,
        seq_length=4096,
        vocab_size=129_280,
        mtp_num_layers=1,
        mtp_loss_scaling_factor=0.3,
        tensor_model_parallel_size=2,
        sequence_parallel=True,
        pipeline_model_parallel_size=16,
        virtual_pipeline_model_parallel_size=2,
        pipeline_model_parallel_layout="Et|(tt|)*30mL",
        expert_model_parallel_size=64,
        expert_tensor_parallel_size=1,
        recompute_granularity="selective",
        recompute_modules=["mla_up_proj", "mlp", "moe_act", "layernorm"],
        **ATTENTION,
        **EXPERTS,
        **MODERN,
    )
    return pretraining(model, global_batch_size=15_360, learning_rate=2.2e-4, train_iters=250_000)
