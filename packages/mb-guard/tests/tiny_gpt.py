"""A tiny GPT and a training step on it as in Megatron-LM's `pretrain_gpt.py`, for functions that ranks run."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_mtp_block_spec
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig
from megatron.core.utils import get_batch_on_this_cp_rank

from mb_host.megatron.layers import host_block_spec

SIZES = ("tensor_model_parallel_size", "context_parallel_size", "expert_model_parallel_size")
VOCABULARY, LENGTH = 64, 16
EXPERTS = {"num_moe_experts": 4, "moe_ffn_hidden_size": 24, "moe_token_dispatcher_type": "alltoall"}


def start(**sizes: int) -> None:
    """Initialize the process groups again."""
    parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel(**sizes)


def gpt(**settings: Any) -> GPTModel:
    """Build a seeded GPT."""
    tensor_parallel.model_parallel_cuda_manual_seed(1234, force_reset_rng=True)
    latent = settings.get("multi_latent_attention")
    config = (MLATransformerConfig if latent else TransformerConfig)(
        **{
            "num_layers": 2,
            "hidden_size": 32,
            "num_attention_heads": 4,
            "ffn_hidden_size": 48,
            "hidden_dropout": 0.0,
            "attention_dropout": 0.0,
            "add_bias_linear": False,
            "normalization": "RMSNorm",
            "transformer_impl": "local",
            "bias_dropout_fusion": False,
            "params_dtype": torch.float32,
            **settings,
        }
    )
    layers = host_block_spec(config, vp_stage=None, pp_rank=0)
    ahead = None
    if config.mtp_num_layers:
        ahead = get_gpt_mtp_block_spec(config, layers, use_transformer_engine=False)
        for spec in ahead.layer_specs:
            spec.submodules.enorm = spec.submodules.hnorm = spec.submodules.layer_norm = layers.layer_norm
    return GPTModel(
        config=config,
        transformer_layer_spec=layers,
        vocab_size=VOCABULARY,
        max_sequence_length=LENGTH,
        position_embedding_type="rope",
        mtp_block_spec=ahead,
    )


def batch(loss_mask: torch.Tensor, **masks: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return rows of random tokens with a loss mask, [B, S]."""
    shape = (len(loss_mask), LENGTH + 1)
    tokens = torch.randint(1, VOCABULARY, shape, generator=torch.Generator().manual_seed(0))
    positions = torch.arange(LENGTH).expand(len(loss_mask), -1)
    return {
        "tokens": tokens[:, :-1],
        "labels": tokens[:, 1:],
        "loss_mask": loss_mask.float(),
        "position_ids": positions,
        **masks,
    }


def masked_sum(loss_mask: torch.Tensor, losses: torch.Tensor) -> tuple[Any, ...]:
    """Return what the loss function of `pretrain_gpt.py` does."""
    mask = loss_mask.reshape(-1)
    total, tokens = (losses.reshape(-1) * mask).sum(), mask.sum()
    return total, tokens.int(), {"lm loss": torch.stack([total.detach(), tokens])}


def forward_step(iterator: Iterator[Mapping[str, torch.Tensor]], model: Any) -> tuple[Any, Any]:
    """Run one microbatch on this context-parallel rank."""
    part = dict(next(iterator))
    if parallel_state.get_context_parallel_world_size() > 1:
        part = get_batch_on_this_cp_rank({**part, "cu_seqlens": None}, is_hybrid_cp=False)
    padding = {"padding_mask": part["padding_mask"]} if "padding_mask" in part else {}
    losses = model(
        part["tokens"],
        part["position_ids"],
        None,
        labels=part["labels"],
        loss_mask=part["loss_mask"],
        **padding,
    )
    return losses, partial(masked_sum, part["loss_mask"])


def gradients(
    model: GPTModel,
    microbatches: Sequence[Mapping[str, torch.Tensor]],
    step: Callable[..., tuple[Any, Any]] = forward_step,
) -> dict[str, torch.Tensor]:
    """Return the gradient of each parameter after a step over microbatches, as the optimizer reads it."""
    wrapped = DistributedDataParallel(model.config, DistributedDataParallelConfig(), model)
    model.config.finalize_model_grads_func = finalize_model_grads
    get_forward_backward_func()(
        forward_step_func=step,
        data_iterator=iter(microbatches),
        model=[wrapped],
        num_microbatches=len(microbatches),
        seq_length=LENGTH,
        micro_batch_size=len(microbatches[0]["tokens"]),
        forward_only=False,
    )
    return {name: value.main_grad.clone() for name, value in model.named_parameters()}


def rows(whole: Mapping[str, torch.Tensor], *taken: int) -> dict[str, torch.Tensor]:
    """Return some rows of a batch."""
    return {name: each[list(taken)] for name, each in whole.items()}


def relative(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> float:
    """Return the norm of the difference of two gradients, relative to the second."""
    pairs = [(one[name], other[name]) for name in other]
    apart = sum(float((a - b).norm()) ** 2 for a, b in pairs)
    return (apart / sum(float(b.norm()) ** 2 for _, b in pairs)) ** 0.5
