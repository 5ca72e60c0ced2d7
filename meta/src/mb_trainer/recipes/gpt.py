"""GPT recipes."""

from mb_trainer.config import (
    CheckpointConfig,
    CommOverlapConfig,
    ConfigContainer,
    DistributedDataParallelConfig,
    GPTModelConfig,
    LoggerConfig,
    OptimizerConfig,
    SchedulerConfig,
    TextCorpusConfig,
    TokenizerConfig,
    TrainingConfig,
    ValidationConfig,
)
from mb_trainer.recipes.recipe import Recipe


def gpt_tiny() -> ConfigContainer:
    """Build a GPT of 5 million parameters on the Python standard library's sources, for two CPU cores or any GPU."""
    seq_length = 256
    return ConfigContainer(
        train=TrainingConfig(train_iters=300, global_batch_size=8, micro_batch_size=8),
        validation=ValidationConfig(eval_interval=100, eval_iters=16),
        model=GPTModelConfig(
            num_layers=4,
            hidden_size=256,
            ffn_hidden_size=640,
            num_attention_heads=8,
            num_query_groups=4,
            seq_length=seq_length,
            position_embedding_type="rope",
            normalization="RMSNorm",
            gated_linear_unit=True,
            activation_func="silu",
            add_bias_linear=False,
            hidden_dropout=0.0,
            attention_dropout=0.0,
            calculate_per_token_loss=True,
        ),
        optimizer=OptimizerConfig(lr=2e-3, min_lr=2e-4, adam_beta2=0.95, weight_decay=0.1, clip_grad=1.0),
        scheduler=SchedulerConfig(lr_decay_style="cosine", lr_warmup_iters=20),
        ddp=DistributedDataParallelConfig(grad_reduce_in_fp32=True),
        dataset=TextCorpusConfig(
            seq_length=seq_length, vocab_size=4096, dataloader_type="single", num_workers=0
        ),
        tokenizer=TokenizerConfig(),
        logger=LoggerConfig(log_interval=10, log_throughput=True, log_throughput_to_tensorboard=True),
        checkpoint=CheckpointConfig(save_interval=100),
        comm_overlap=CommOverlapConfig(tp_comm_overlap=False),
    )


RECIPES = {
    "gpt_tiny": Recipe(
        summary="GPT, 5 M parameters, Python sources; about two to three minutes on two CPU cores",
        build=gpt_tiny,
    ),
}
