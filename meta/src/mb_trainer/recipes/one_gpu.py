"""Recipes of further models for one GPU: a GPT of 355 million parameters, and one with experts."""

from mb_config.trainer_api import recipe
from mb_trainer.config import ConfigContainer, GPTModelConfig
from mb_trainer.recipes.pretraining import MODERN, pretraining


@recipe("GPT-2 medium, 1,024 tokens; 1 GPU and multiples")
def gpt_350m() -> ConfigContainer:
    """Build GPT-2 medium for one GPU and multiples: learned positions, LayerNorm, tied output layer.

    354,823,168 parameters, and 47 rows of padding of the embedding.
    """
    model = GPTModelConfig(
        num_layers=24,
        hidden_size=1024,
        num_attention_heads=16,
        seq_length=1024,
        vocab_size=50_304,
        share_embeddings_and_output_weights=True,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        bias_activation_fusion=True,
        bias_dropout_fusion=True,
        masked_softmax_fusion=True,
        cross_entropy_loss_fusion=True,
    )
    config = pretraining(model, global_batch_size=256, learning_rate=3e-4)
    config.train.micro_batch_size = 16
    return config


@recipe("GPT with 32 experts, 1.3 B parameters, 400 M per token, 4,096 tokens; 1 GPU and multiples")
def moe_1b() -> ConfigContainer:
    """Build a GPT of 1.3 billion parameters with 32 experts, 8 of them per token, for one GPU and multiples.

    The shape is that of Granite 3.0 1B-A400M, without its multipliers.
    """
    model = GPTModelConfig(
        num_layers=24,
        hidden_size=1024,
        ffn_hidden_size=512,
        num_attention_heads=16,
        num_query_groups=8,
        layernorm_epsilon=1e-6,
        num_moe_experts=32,
        moe_router_topk=8,
        moe_ffn_hidden_size=512,
        moe_router_load_balancing_type="aux_loss",
        moe_aux_loss_coeff=0.01,
        moe_token_dispatcher_type="alltoall",
        moe_grouped_gemm=True,
        moe_permute_fusion=True,
        share_embeddings_and_output_weights=True,
        seq_length=4096,
        vocab_size=49_155,
        **MODERN,
    )
    return pretraining(model, global_batch_size=128, learning_rate=4e-4)
