"""Recipes of hybrid models: Mamba, gated-delta and attention layers, MLPs and experts in the order of a pattern."""

from mb_config.trainer_api import recipe
from mb_trainer.config import (
    ConfigContainer,
    MambaModelConfig,
    TextCorpusConfig,
    TrainingConfig,
)
from mb_trainer.recipes.gpt import gpt_tiny
from mb_trainer.recipes.pretraining import pretraining


@recipe("hybrid of Mamba, gated delta and attention, 3 M parameters, Python sources; a minute on two cores")
def hybrid_tiny() -> ConfigContainer:
    """Build a hybrid of 3 million parameters on the Python standard library's sources, for two CPU cores."""
    config = gpt_tiny()
    config.train = TrainingConfig(train_iters=150, global_batch_size=8, micro_batch_size=8)
    config.model = MambaModelConfig(
        num_layers=6,
        hybrid_layer_pattern="M-G-*-",
        hidden_size=192,
        ffn_hidden_size=512,
        num_attention_heads=6,
        num_query_groups=2,
        mamba_state_dim=32,
        mamba_head_dim=32,
        mamba_num_groups=2,
        linear_key_head_dim=32,
        linear_value_head_dim=32,
        linear_num_key_heads=4,
        linear_num_value_heads=4,
        seq_length=128,
        normalization="RMSNorm",
        gated_linear_unit=True,
        activation_func="silu",
        add_bias_linear=False,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        calculate_per_token_loss=True,
    )
    config.dataset = TextCorpusConfig(
        seq_length=128, vocab_size=4096, dataloader_type="single", num_workers=0
    )
    return config


@recipe("Mamba 2 hybrid, 8.65 B parameters, 4,096 tokens; 8 GPUs and multiples: TP 4", processes=8)
def hybrid_8b() -> ConfigContainer:
    """Build a Mamba 2 hybrid of 8,654,517,248 parameters for multiples of 8 GPUs with 80 GB: TP 4.

    24 Mamba layers, 4 attention layers without position embeddings and 28 MLPs, in the order and sizes of Waleffe et
    al. (2024), "An Empirical Study of Mamba-based Language Models".
    """
    model = MambaModelConfig(
        num_layers=56,
        hybrid_layer_pattern="M-M-M--M-M*-M-M-M-M--M*-M-M-M-M-M*--M-M-M-M-M*-M--M-M-M-",
        hidden_size=4096,
        ffn_hidden_size=16384,
        num_attention_heads=32,
        num_query_groups=8,
        normalization="RMSNorm",
        add_bias_linear=False,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        seq_length=4096,
        vocab_size=256_000,
        tensor_model_parallel_size=4,
        sequence_parallel=True,
        bias_dropout_fusion=True,
        cross_entropy_loss_fusion=True,
    )
    return pretraining(model, global_batch_size=256, learning_rate=2.5e-4)


@recipe("Mamba 2 hybrid, 0.9 B parameters, 4,096 tokens; 1 GPU and multiples")
def hybrid_1b() -> ConfigContainer:
    """Build a Mamba 2 hybrid of 885 million parameters for one GPU and multiples: layers in the order of Nemotron-H."""
    model = MambaModelConfig(
        num_layers=26,
        hybrid_layer_pattern="M-M-M-M*-M-M-M-M*-M-M-M-M-",
        hidden_size=2048,
        ffn_hidden_size=8192,
        num_attention_heads=16,
        num_query_groups=8,
        mamba_head_dim=64,
        mamba_num_groups=8,
        normalization="RMSNorm",
        activation_func="squared_relu",
        add_bias_linear=False,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        seq_length=4096,
        vocab_size=50_304,
        share_embeddings_and_output_weights=True,
        bias_dropout_fusion=True,
        cross_entropy_loss_fusion=True,
    )
    return pretraining(model, global_batch_size=128, learning_rate=4e-4)


@recipe("shape of Nemotron-H 8B, 8,192 tokens; 8 GPUs and multiples: TP 4", processes=8)
def nemotron_h_8b() -> ConfigContainer:
    """Build a model in the shape of Nemotron-H 8B for multiples of 8 GPUs with 80 GB: TP 4.

    24 Mamba layers, 4 attention layers without position embeddings, and 24 MLPs with a squared ReLU.
    """
    model = MambaModelConfig(
        num_layers=52,
        hybrid_layer_pattern="M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
        hidden_size=4096,
        ffn_hidden_size=21504,
        num_attention_heads=32,
        num_query_groups=8,
        kv_channels=128,
        mamba_state_dim=128,
        mamba_head_dim=64,
        mamba_num_groups=8,
        normalization="RMSNorm",
        activation_func="squared_relu",
        add_bias_linear=False,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        seq_length=8192,
        vocab_size=131_072,
        tensor_model_parallel_size=4,
        sequence_parallel=True,
        bias_dropout_fusion=True,
        cross_entropy_loss_fusion=True,
    )
    return pretraining(model, global_batch_size=256, learning_rate=3e-4)
