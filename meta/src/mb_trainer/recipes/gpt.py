"""Recipes of small GPTs, dense and with experts."""

from collections.abc import Mapping
from typing import Any

from mb_config.trainer_api import recipe
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

TINY: Mapping[str, Any] = {
    "position_embedding_type": "rope",
    "normalization": "RMSNorm",
    "gated_linear_unit": True,
    "activation_func": "silu",
    "add_bias_linear": False,
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    "calculate_per_token_loss": True,
}
SMALL: Mapping[str, Any] = {
    **TINY,
    "num_layers": 3,
    "hidden_size": 128,
    "ffn_hidden_size": 320,
    "num_attention_heads": 4,
    "seq_length": 128,
}
LATENT: Mapping[str, Any] = {
    "multi_latent_attention": True,
    "qk_layernorm": True,
    "q_lora_rank": 64,
    "kv_lora_rank": 32,
    "qk_head_dim": 32,
    "qk_pos_emb_head_dim": 16,
    "v_head_dim": 32,
    "rope_type": "rope",
}
EXPERTS: Mapping[str, Any] = {
    "num_moe_experts": 4,
    "moe_router_topk": 2,
    "moe_ffn_hidden_size": 128,
    "moe_shared_expert_intermediate_size": 128,
    "moe_layer_freq": [0, 1, 1],
    "moe_token_dispatcher_type": "alltoall",
}


def on_python_sources(model: GPTModelConfig, *, steps: int) -> ConfigContainer:
    """Complete the configuration of a small model: sources of Python's standard library, two CPU cores or any GPU."""
    return ConfigContainer(
        train=TrainingConfig(train_iters=steps, global_batch_size=8, micro_batch_size=8),
        validation=ValidationConfig(eval_interval=steps // 3, eval_iters=16),
        model=model,
        optimizer=OptimizerConfig(lr=2e-3, min_lr=2e-4, adam_beta2=0.95, weight_decay=0.1, clip_grad=1.0),
        scheduler=SchedulerConfig(lr_decay_style="cosine", lr_warmup_iters=20),
        ddp=DistributedDataParallelConfig(grad_reduce_in_fp32=True),
        dataset=TextCorpusConfig(
            seq_length=model.seq_length, vocab_size=4096, dataloader_type="single", num_workers=0
        ),
        tokenizer=TokenizerConfig(),
        logger=LoggerConfig(log_interval=10, log_throughput=True, log_throughput_to_tensorboard=True),
        checkpoint=CheckpointConfig(save_interval=steps // 3),
        comm_overlap=CommOverlapConfig(tp_comm_overlap=False),
    )


@recipe("GPT, 5 M parameters, Python sources; about two to three minutes on two CPU cores")
def gpt_tiny() -> ConfigContainer:
    """Build a GPT of 5 million parameters."""
    model = GPTModelConfig(
        num_layers=4,
        hidden_size=256,
        ffn_hidden_size=640,
        num_attention_heads=8,
        num_query_groups=4,
        seq_length=256,
        **TINY,
    )
    return on_python_sources(model, steps=300)


@recipe("GPT with four experts and a shared one, 2 M parameters; under a minute on two CPU cores")
def moe_tiny() -> ConfigContainer:
    """Build a GPT with four experts and a shared expert in two of three layers, balanced by an auxiliary loss."""
    balance: Mapping[str, Any] = {"moe_router_load_balancing_type": "aux_loss", "moe_aux_loss_coeff": 0.01}
    return on_python_sources(GPTModelConfig(**SMALL, **EXPERTS, **balance, moe_z_loss_coeff=1e-3), steps=150)


@recipe(
    "latent attention, experts and a further token (as DeepSeek-V3), Python sources; under a minute on "
    "two CPU cores"
)
def mla_tiny() -> ConfigContainer:
    """Build a small GPT in the style of DeepSeek-V3: latent attention, experts balanced by a bias, one MTP layer."""
    balance: Mapping[str, Any] = {
        "moe_router_score_function": "sigmoid",
        "moe_router_enable_expert_bias": True,
        "moe_router_load_balancing_type": "seq_aux_loss",
        "moe_aux_loss_coeff": 1e-4,
        "moe_router_num_groups": 2,
        "moe_router_group_topk": 1,
        "moe_router_topk_scaling_factor": 2.5,
    }
    return on_python_sources(
        GPTModelConfig(**SMALL, **LATENT, **EXPERTS, **balance, mtp_num_layers=1), steps=150
    )


@recipe("GPT that predicts two further tokens, Python sources; under a minute on two CPU cores")
def mtp_tiny() -> ConfigContainer:
    """Build a dense GPT with two MTP layers."""
    return on_python_sources(GPTModelConfig(**SMALL, mtp_num_layers=2), steps=150)
