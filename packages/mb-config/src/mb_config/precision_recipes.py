"""Named precision recipes. Names may be written with underscores or hyphens."""

from __future__ import annotations

from typing import Any

from mb_config.errors import ConfigReadError
from mb_config.message_text import truncate_repr
from mb_config.precision_table import PRECISIONS, canonical
from mb_config.sections.precision import MixedPrecisionConfig


class UnknownPrecisionError(ConfigReadError, KeyError):
    """The name of a precision recipe is unknown."""

    __str__ = ConfigReadError.__str__


def bf16_mixed() -> MixedPrecisionConfig:
    """Compute in bfloat16, reduce gradients in float32."""
    return get_mixed_precision_config("bf16_mixed")


def fp16_mixed() -> MixedPrecisionConfig:
    """Compute in float16 with dynamic loss scaling, reduce gradients in float16."""
    return get_mixed_precision_config("fp16_mixed")


def get_mixed_precision_config(name: str | MixedPrecisionConfig) -> MixedPrecisionConfig:
    """Return a new configuration for a name. A configuration is returned unchanged.

    Raises:
        UnknownPrecisionError: If there is no such name; lists all names.
    """
    if isinstance(name, MixedPrecisionConfig):
        return name
    values: Any = PRECISIONS.get(canonical(name))
    if values is None:
        raise UnknownPrecisionError(
            f"unknown recipe {truncate_repr(name)}. Use one of {', '.join(PRECISIONS)}",
            path="mixed_precision",
        )
    return MixedPrecisionConfig(**values)
