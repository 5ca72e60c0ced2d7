"""Recipe of Mixtral, in its published size."""

from mb_config.trainer_api import recipe
from mb_trainer.config import ConfigContainer, GPTModelConfig
from mb_trainer.recipes.pretraining import MODERN, pretraining


@recipe("Mixtral 8x7B, 4,096 tokens; 32 GPUs and multiples: EP 8, PP 4", processes=32)
def mixtral_8x7b() -> ConfigContainer:
    """Build Mixtral 8x7B for multiples of 32 GPUs with 80 GB: one expert per rank (EP 8), PP 4, 8 virtual stages."""
    model = GPTModelConfig(
        num_layers=32,
        hidden_size=4096,
        ffn_hidden_size=14336,
        num_attention_heads=32,
        num_query_groups=8,
        rotary_base=1_000_000,
        seq_length=4096,
        vocab_size=32_000,
        num_moe_experts=8,
        moe_router_topk=2,
        moe_router_load_balancing_type="aux_loss",
        moe_aux_loss_coeff=0.02,
        moe_token_dispatcher_type="alltoall",
        moe_grouped_gemm=True,
        moe_permute_fusion=True,
        expert_model_parallel_size=8,
        pipeline_model_parallel_size=4,
        virtual_pipeline_model_parallel_size=8,
        **MODERN,
    )
    return pretraining(model, global_batch_size=512, learning_rate=3e-4)
