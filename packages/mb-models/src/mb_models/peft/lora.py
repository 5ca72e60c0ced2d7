"""LoRA, canonical LoRA and DoRA: installation in a model, initialisation and merging."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mb_models.errors import PeftError
from mb_models.peft.adapted_linear import (
    adapted_class,
    adapted_layers,
    adapted_weights,
    row_lengths,
    row_norms,
    weight_delta,
)
from mb_models.peft.linears import is_plain, partition_of
from mb_models.peft.selection import kind_of, select_layers, validate_on_all_ranks
from mb_models.training.freezing import freeze_moe_router

if TYPE_CHECKING:
    from mb_models.peft.config import LoRA


def install(chunks: Sequence[Any], section: LoRA) -> None:
    """Freeze the chunks and add adapters to the layers that the section selects.

    Routers keep the bias that balances experts: checkpoints hold only adapters, so that an update would be lost.
    All ranks of the default process group call it with the same random seed: a match on any rank counts, and all ranks
    raise the same error.

    Raises:
        PeftError: the rank is not positive, or cannot be divided as `normalize_moe_lora` demands; a pattern matches no
            layer of any rank; a layer is none of Megatron's linear layers or `torch.nn.Linear`; or the model has
            adapters of another section.
        mb_models.training.freezing.FreezingError: experts are balanced by quantiles.
    """
    if section.dim < 1:
        raise PeftError(
            f"peft.dim: must be 1 or more, is {section.dim}, because it is a rank. Set it higher."
        )
    if is_installed(chunks, section):
        return
    selections = [select_layers(chunk, section) for chunk in chunks]
    # kinds of layers, and parts of them, of which only some layers have adapters: these are stored layer by layer
    partly_adapted = validate_on_all_ranks(selections, section)
    freeze_moe_router(chunks)
    for chunk, selection in zip(chunks, selections, strict=True):
        chunk.requires_grad_(False)
        chunk.adapter_section = repr(section)
        for path, parts in selection.chosen.items():
            module, name = chunk.get_submodule(path), selection.names[path]
            module.partition = partition_of(path, module)
            if module.partition.normalises:
                module.return_layernorm_output = True  # the adapters' input
            leaf = path.rsplit(".", 1)[-1]
            cls, plain = type(module), is_plain(module)
            # the same object with another class: its name, its parameters and Megatron's references to it remain
            module.__class__ = adapted_class(cls)  # type: ignore[arg-type]  # classes are hashable
            module.glu_halves = leaf == "linear_fc1" and not plain and module.config.gated_linear_unit
            module.fuses_qkv = leaf == "linear_qkv" and not plain
            module.by_layer = any((kind_of(name), part) in partly_adapted for part in parts)
            module.add_adapters(section, parts, name=name)
        for module in chunk.modules():
            recomputes = getattr(getattr(module, "config", None), "recompute_granularity", None) is not None
            if recomputes and hasattr(module, "layers"):
                module.register_forward_pre_hook(_require_gradient, with_kwargs=True)


def is_installed(chunks: Sequence[Any], section: LoRA) -> bool:
    """Return whether the chunks have the adapters of the section, which are then trained again.

    Raises:
        PeftError: they have adapters of another section.
    """
    for chunk in chunks:
        installed = getattr(chunk, "adapter_section", repr(section))
        if installed != repr(section):
            raise PeftError(
                f"peft: the model already has the adapters of {installed}, because it was called with them, and a "
                "layer has one method. Merge them first (mb_models.peft.lora.merge), or build the model again."
            )
    for _, layer in adapted_layers(chunks):
        layer.adapter.requires_grad_(True)
    return any(hasattr(chunk, "adapter_section") for chunk in chunks)


def _require_gradient(_module: Any, args: tuple[Any, ...], options: Mapping[str, Any]) -> None:
    """Make the input of a stack of layers require a gradient.

    Recomputed layers receive gradients only through such an input, and frozen embeddings and encoders provide none.
    """
    input_ = options.get("hidden_states", args[0] if args else None)
    trains = torch.is_grad_enabled() and isinstance(input_, Tensor) and input_.is_floating_point()
    if trains and not input_.requires_grad:
        input_.requires_grad_()


@torch.no_grad()
def init_magnitudes(chunks: Sequence[Any]) -> None:
    """Set DoRA's magnitudes to the row norms of the current weights; collective over tensor-parallel groups."""
    for _, layer in adapted_weights(chunks):
        layer.magnitude.copy_(row_norms(layer, layer.weight))


@torch.no_grad()
def merge(chunks: Sequence[Any], *, is_needed: Callable[[str], bool] | None = None) -> None:
    """Merge the adapters into the weights and remove them; collective over tensor-parallel groups for DoRA.

    With `is_needed`, a predicate of names of weights, other weights are left unchanged.
    """
    for name, layer in adapted_weights(chunks):
        if is_needed is not None and not is_needed(name):
            continue
        merged = layer.weight + weight_delta(layer)
        if layer.magnitude is not None:
            merged = merged * (layer.magnitude / row_lengths(layer, merged))[:, None]
        if layer.partition.group is None:
            layer.weight = torch.nn.Parameter(
                merged, requires_grad=False
            )  # torch's may be an embedding's, too
        else:
            layer.weight.copy_(merged)
    for _, layer in list(adapted_layers(chunks)):
        remove_adapters(layer)
    for chunk in chunks:
        vars(chunk).pop("adapter_section", None)


def remove_adapters(layer: Any) -> None:
    """Make a layer what it was before it had adapters."""
    if layer.partition.normalises:
        layer.return_layernorm_output = False
    del layer.adapter
    layer.__class__ = type(layer).__bases__[1]  # after the mixin
