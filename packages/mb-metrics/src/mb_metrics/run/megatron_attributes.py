"""Attributes of Megatron's parameters, model chunks and group collections. Imports neither torch nor Megatron.

Megatron sets an attribute only where it applies (`shared` on a tied embedding, `ep` in a collection with expert
parallelism), so that a missing attribute is information and not an error.
"""

from typing import Any


def attribute(item: object, name: str) -> Any:
    """Return an attribute that Megatron sets where it applies; None if it is not set."""
    return getattr(item, name, None)


def first_group(groups: object | None, *names: str) -> Any:
    """Return the first of these process groups that exists in a collection; None if there is none."""
    return next((group for name in names if (group := attribute(groups, name)) is not None), None)


def has_distributed_optimizer(chunk: object) -> bool:
    """Return True if the optimizer state of a model chunk, wrapped in Megatron's DDP, is sharded."""
    settings = attribute(chunk, "ddp_config")
    return settings is not None and bool(settings.use_distributed_optimizer)
