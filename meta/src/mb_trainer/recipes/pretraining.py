"""Common configuration for the pretraining of published models. Mock tokens are used until data are configured."""

from collections.abc import Mapping
from typing import Any

from mb_trainer.config import (
    CheckpointConfig,
    CommOverlapConfig,
    ConfigContainer,
    DistributedDataParallelConfig,
    GPTModelConfig,
    LoggerConfig,
    MambaModelConfig,
    MockGPTDatasetConfig,
    OptimizerConfig,
    SchedulerConfig,
    T5ModelConfig,
    TokenizerConfig,
    TrainingConfig,
    ValidationConfig,
)

MODERN: Mapping[str, Any] = {
    "position_embedding_type": "rope",
    "normalization": "RMSNorm",
    "gated_linear_unit": True,
    "activation_func": "silu",
    "add_bias_linear": False,
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    "apply_rope_fusion": True,
    "bias_activation_fusion": True,
    "bias_dropout_fusion": True,
    "masked_softmax_fusion": True,
    "cross_entropy_loss_fusion": True,
}
"""Layer settings common to models since Llama, with the fused kernels of a GPU."""


def pretraining(
    model: GPTModelConfig | MambaModelConfig | T5ModelConfig,
    *,
    global_batch_size: int,
    learning_rate: float,
    train_iters: int = 300_000,
    overlap: CommOverlapConfig | None = None,
) -> ConfigContainer:
    """Complete the configuration of a published model: bfloat16, distributed optimizer, cosine schedule, mock tokens.

    For real data, set `dataset` to a GPTDatasetConfig with its `data_path`, and `tokenizer` to that of the data.
    """
    return ConfigContainer(
        train=TrainingConfig(
            train_iters=train_iters, global_batch_size=global_batch_size, micro_batch_size=1
        ),
        validation=ValidationConfig(eval_interval=2000, eval_iters=32),
        model=model,
        optimizer=OptimizerConfig(
            lr=learning_rate,
            min_lr=learning_rate / 10,
            adam_beta2=0.95,
            adam_eps=1e-8,
            weight_decay=0.1,
            clip_grad=1.0,
            use_distributed_optimizer=True,
        ),
        scheduler=SchedulerConfig(lr_decay_style="cosine", lr_warmup_iters=2000),
        ddp=DistributedDataParallelConfig(use_distributed_optimizer=True, grad_reduce_in_fp32=True),
        dataset=MockGPTDatasetConfig(
            seq_length=model.seq_length,
            split="9999,8,2",
            num_workers=8,
            reset_position_ids=False,
            reset_attention_mask=False,
            eod_mask_loss=False,
        ),
        tokenizer=TokenizerConfig(tokenizer_type="NullTokenizer", vocab_size=model.vocab_size),
        logger=LoggerConfig(log_interval=10, log_throughput=True, log_throughput_to_tensorboard=True),
        checkpoint=CheckpointConfig(
            save_interval="auto",
            most_recent_k=3,
            async_save=True,
            ckpt_assume_constant_structure=True,
        ),
        mixed_precision="bf16_mixed",
        comm_overlap=overlap or CommOverlapConfig(tp_comm_overlap=False),
    )
