"""Recipes of vision-language models: images and text in, text out."""

from mb_config.trainer_api import recipe
from mb_trainer.config import (
    CheckpointConfig,
    ConfigContainer,
    DistributedDataParallelConfig,
    DrawnShapesConfig,
    LoggerConfig,
    MimoModelConfig,
    OptimizerConfig,
    SchedulerConfig,
    TokenizerConfig,
    TrainingConfig,
    ValidationConfig,
)
from mb_trainer.recipes.gpt import TINY


@recipe("captions for images of coloured shapes, 0.7 M parameters; about a minute on two CPU cores")
def mimo_tiny() -> ConfigContainer:
    """Build a small model that captions images of coloured shapes, byte by byte, for two CPU cores or any GPU."""
    model = MimoModelConfig(
        **TINY,
        num_layers=2,
        hidden_size=128,
        ffn_hidden_size=320,
        num_attention_heads=4,
        seq_length=80,
        vision_num_layers=2,
        vision_hidden_size=96,
        vision_num_attention_heads=4,
        image_size=32,
        patch_size=8,
    )
    return ConfigContainer(
        train=TrainingConfig(train_iters=400, global_batch_size=32, micro_batch_size=16),
        validation=ValidationConfig(eval_interval=100, eval_iters=8),
        model=model,
        optimizer=OptimizerConfig(lr=1e-3, min_lr=1e-4, adam_beta2=0.95, weight_decay=0.1, clip_grad=1.0),
        scheduler=SchedulerConfig(lr_decay_style="cosine", lr_warmup_iters=20),
        ddp=DistributedDataParallelConfig(grad_reduce_in_fp32=True),
        dataset=DrawnShapesConfig(
            seq_length=model.seq_length,
            image_size=model.image_size,
            image_tokens=model.image_tokens,
            dataloader_type="single",
            num_workers=0,
        ),
        tokenizer=TokenizerConfig(tokenizer_type="ByteTokenizer"),
        logger=LoggerConfig(log_interval=10, log_throughput=True, log_throughput_to_tensorboard=True),
        checkpoint=CheckpointConfig(save_interval=100),
    )
