"""Recipe in the shape of GPT-OSS."""

from mb_config.trainer_api import recipe
from mb_trainer.config import ConfigContainer, GPTModelConfig
from mb_trainer.recipes.pretraining import pretraining


@recipe("shape of GPT-OSS 20B, 4,096 tokens; 8 GPUs and multiples: EP 8", processes=8)
def gpt_oss_20b() -> ConfigContainer:
    """Build a model in the shape of GPT-OSS 20B for multiples of 8 GPUs with 80 GB: EP 8.

    Every other layer attends to 128 tokens, attention has a learned sink, and experts have biases and a clamped GLU.
    Positions are not scaled (YaRN), since 4,096 tokens are trained.
    """
    model = GPTModelConfig(
        num_layers=24,
        hidden_size=2880,
        ffn_hidden_size=2880,
        num_attention_heads=64,
        num_query_groups=8,
        kv_channels=64,
        normalization="RMSNorm",
        gated_linear_unit=True,
        activation_func="quick_gelu",
        hidden_dropout=0.0,
        attention_dropout=0.0,
        position_embedding_type="rope",
        rotary_base=150_000,
        window_size=(127, 0),
        window_attn_skip_freq=2,
        softmax_type="learnable",
        transformer={"glu_linear_offset": 1.0, "activation_func_clamp_value": 7.0},
        num_moe_experts=32,
        moe_router_topk=4,
        moe_ffn_hidden_size=2880,
        moe_router_load_balancing_type="none",
        moe_token_dispatcher_type="alltoall",
        moe_grouped_gemm=True,
        moe_permute_fusion=True,
        expert_model_parallel_size=8,
        seq_length=4096,
        vocab_size=201_088,
        bias_dropout_fusion=True,
        cross_entropy_loss_fusion=True,
    )
    return pretraining(model, global_batch_size=512, learning_rate=3e-4)
