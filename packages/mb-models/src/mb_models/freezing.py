"""Weights that are not to be trained."""

from collections.abc import Sequence

import torch
from megatron.core.distributed.data_parallel_base import _BaseDataParallel
from megatron.core.transformer.moe.moe_layer import BaseMoELayer


class FreezingError(ValueError):
    """Weights that can no longer be frozen."""


def freeze_moe_router(model: torch.nn.Module | Sequence[torch.nn.Module]) -> list[torch.nn.Module]:
    """Freeze routers and gates of shared experts in a rank's chunks, or in one, and return the chunks as a list.

    Weights and biases no longer require gradients, and the bias that balances experts
    (`moe_router_enable_expert_bias`) is no longer moved: tokens go on being routed as they are now. Layers of
    multi-token prediction are layers like others. A chunk without experts is left as it is. To be called before the
    chunks are wrapped for data parallelism.

    Raises:
        FreezingError: a chunk is wrapped already, or balances experts by quantiles; nothing is frozen then.
    """
    chunks = [model] if isinstance(model, torch.nn.Module) else list(model)
    for chunk in chunks:
        if isinstance(chunk, _BaseDataParallel):
            raise FreezingError(
                f"freeze_moe_router: got a {type(chunk).__name__}, because its buffers have room for the gradients "
                "of all parameters that required one when it was made. Freeze before wrapping."
            )
    layers = [layer for chunk in chunks for layer in chunk.modules() if isinstance(layer, BaseMoELayer)]
    if any(layer.router.qb_beta is not None for layer in layers):
        raise FreezingError(
            'freeze_moe_router: model.moe_router_load_balancing_type="quantile_balancing", because Megatron Core moves '
            "the quantiles by which tokens are routed in every step, frozen or not. Choose another type."
        )
    for layer in layers:
        _freeze(layer.router, "weight", "bias")
        layer.router.frozen_expert_bias = True  # where Megatron looks before it moves the bias
        _freeze(layer.shared_experts, "gate_weight", "gate_bias")
    return chunks


def _freeze(module: torch.nn.Module | None, *names: str) -> None:
    """Freeze the parameters of a module that are there."""
    for name, parameter in () if module is None else module.named_parameters(recurse=False):
        if name in names:
            parameter.requires_grad_(False)
