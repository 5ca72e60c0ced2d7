"""Fields of model, optimizer and ddp that a precision recipe sets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from mb_config.container.field_access import UNKNOWN, default_of, get_field, has_field

CORE = ("bf16", "fp16", "params_dtype")
"""Fields that define a recipe. A different value set by the user is a conflict."""
_SECTIONS = ("model", "optimizer", "ddp")


def precision_values(recipe: Any, config: Any) -> Iterator[tuple[str, Any]]:
    """Yield the path and the value of each field that differs from the recipe, in the order of the recipe's fields.

    A section that is None is left out, as is None for a field whose default is not None. Each field is read when it
    is its turn, so that the caller may assign the values while it iterates.
    """
    for item in fields(recipe):
        for section in _SECTIONS:
            path, value = f"{section}.{item.name}", getattr(recipe, item.name)
            if path == "optimizer.fp8_recipe" and recipe.fp8 is None:
                # With the name of a recipe Megatron Core keeps float32 copies of the weights itself, and the
                # precision-aware optimizer saves nothing.
                value = None
            if getattr(config, section) is None or not has_field(config, path):
                continue
            required = value is None and default_of(config, path) not in (None, UNKNOWN)
            if not required and get_field(config, path) != value:
                yield path, value
