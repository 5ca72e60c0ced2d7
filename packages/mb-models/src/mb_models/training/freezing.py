"""Freezing of weights that are not trained."""

from collections.abc import Sequence

import torch
from megatron.core.distributed.data_parallel_base import _BaseDataParallel
from megatron.core.transformer.moe.moe_layer import BaseMoELayer

from mb_models.errors import ModelsError


class FreezingError(ModelsError, ValueError):
    """Weights that can no longer be frozen."""

    internal = True


def freeze_moe_router(model: torch.nn.Module | Sequence[torch.nn.Module]) -> list[torch.nn.Module]:
    """Freeze routers and gates of shared experts in a rank's chunks, or in one, and return the chunks as a list.

    Weights and biases no longer require gradients, and the bias that balances experts
    (`moe_router_enable_expert_bias`) is no longer updated: the routing of tokens stays fixed. Layers of multi-token
    prediction are treated like other layers. A chunk without experts is unchanged. Call it before the chunks are
    wrapped for data parallelism.

    Raises:
        FreezingError: a chunk is already wrapped, or balances experts by quantiles; nothing is frozen in that case.
    """
    chunks = [model] if isinstance(model, torch.nn.Module) else list(model)
    for chunk in chunks:
        if isinstance(chunk, _BaseDataParallel):
            raise FreezingError(
                f"freeze_moe_router: got a {type(chunk).__name__}, because its buffers hold the gradients "
                "of all parameters that required one when it was built. Freeze before wrapping."
            )
    layers = [layer for chunk in chunks for layer in chunk.modules() if isinstance(layer, BaseMoELayer)]
    if any(layer.router.qb_beta is not None for layer in layers):
        raise FreezingError(
            'freeze_moe_router: model.moe_router_load_balancing_type="quantile_balancing", because Megatron Core '
            "updates the quantiles that route tokens in every step, frozen or not. Choose another type."
        )
    for layer in layers:
        _freeze(layer.router, "weight", "bias")
        layer.router.frozen_expert_bias = True  # Megatron reads this attribute before it updates the bias
        _freeze(layer.shared_experts, "gate_weight", "gate_bias")
    return chunks


def _freeze(module: torch.nn.Module | None, *names: str) -> None:
    """Freeze the parameters of a module with these names, where it has them."""
    for name, parameter in () if module is None else module.named_parameters(recurse=False):
        if name in names:
            parameter.requires_grad_(False)
