"""Recipe of Qwen3, in its published size."""

from mb_config.registration import Recipe
from mb_trainer.config import CommOverlapConfig, ConfigContainer, GPTModelConfig
from mb_trainer.recipes.pretraining import MODERN, pretraining


def qwen3_8b() -> ConfigContainer:
    """Build Qwen3 8B for multiples of 8 GPUs with 80 GB: TP 2 with sequence parallelism."""
    model = GPTModelConfig(
        num_layers=36,
        hidden_size=4096,
        ffn_hidden_size=12288,
        num_attention_heads=32,
        num_query_groups=8,
        kv_channels=128,
        qk_layernorm=True,
        layernorm_epsilon=1e-6,
        rotary_base=1_000_000,
        seq_length=4096,
        vocab_size=151_936,
        tensor_model_parallel_size=2,
        sequence_parallel=True,
        **MODERN,
    )
    return pretraining(
        model,
        global_batch_size=512,
        learning_rate=3e-4,
        train_iters=300_000,
        overlap=CommOverlapConfig(tp_comm_overlap=True),
    )


RECIPES = {
    "qwen3_8b": Recipe(
        summary="Qwen3 8B, 4,096 tokens; 8 GPUs and multiples: TP 2", build=qwen3_8b, processes=8
    )
}
