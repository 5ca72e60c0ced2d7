"""Installation of a custom method that replaces a model's modules one by one."""

from collections.abc import Sequence
from typing import Any

from torch import nn

from mb_models.errors import PeftError
from mb_models.training.freezing import freeze_moe_router


def install(chunks: Sequence[nn.Module], section: Any) -> frozenset[str]:
    """Freeze the chunks, replace each module by what the section's `transform` returns, and return what is trained.

    These are the names of parameters that require a gradient afterwards, and of buffers of modules with running
    statistics. Not collective.

    Raises:
        PeftError: `transform` returns no module, or replaces the model itself; nothing is trained in any chunk; or a
            name is trained in one of several chunks only.
        mb_models.training.freezing.FreezingError: as for `freeze_moe_router`.
    """
    freeze_moe_router(chunks)
    section.freeze_model(list(chunks))
    for chunk in chunks:
        if _replaced(chunk, section, name=None, prefix=None, done={}) is not chunk:
            raise PeftError(
                f"peft: {type(section).__name__}.transform replaces the model, but Megatron has references to it. "
                "Return the module itself where name is None."
            )
    states = [_trained(chunk) for chunk in chunks]
    trained = frozenset[str]().union(*states)
    for chunk, here in zip(chunks, states, strict=True):
        frozen = sorted((trained - here) & chunk.state_dict().keys())
        if frozen:
            raise PeftError(
                f"peft: {frozen[0]} is trained in one chunk of the model and frozen in another, but names "
                "separate adapters from base weights in a checkpoint. Train it in all chunks, or as a separate module."
            )
    return trained


def _replaced(
    module: nn.Module,
    section: Any,
    *,
    name: str | None,
    prefix: str | None,
    done: dict[nn.Module, nn.Module],
) -> nn.Module:
    """Return the replacement of a module, after that of the modules which it had before, in it."""
    if module in done:
        return done[module]
    children = list(module.named_children())
    new = section.transform(module, name=name, prefix=prefix)
    path = name or "" if not prefix else f"{prefix}.{name}"
    if not isinstance(new, nn.Module):
        raise PeftError(
            f"peft: {type(section).__name__}.transform returns {type(new).__name__} for {path or 'the model'}. Return "
            "the module, replaced or not."
        )
    done[module] = done[new] = new
    for child_name, child in children:
        replaced = _replaced(child, section, name=child_name, prefix=path, done=done)
        if replaced is not child and getattr(module, child_name, None) is child:
            setattr(module, child_name, replaced)
    return new


def _trained(chunk: nn.Module) -> frozenset[str]:
    buffers = {
        f"{path}.{name}"
        for path, module in chunk.named_modules(remove_duplicate=False)
        if hasattr(module, "track_running_stats")
        for name, _ in module.named_buffers(recurse=False)
    }
    parameters = chunk.named_parameters(remove_duplicate=False)
    return frozenset(buffers | {name for name, value in parameters if value.requires_grad})
