"""The named precision recipes. Every name may be written with underscores or with hyphens."""

from __future__ import annotations

from typing import Any

from mb_config.errors import ConfigReadError
from mb_config.message_text import truncate_repr
from mb_config.precision_table import PRECISIONS, canonical
from mb_config.sections.precision import MixedPrecisionConfig


class UnknownPrecisionError(ConfigReadError, KeyError):
    """There is no precision recipe of that name."""

    __str__ = ConfigReadError.__str__


def bf16_mixed() -> MixedPrecisionConfig:
    """Compute in bfloat16, reduce gradients in float32."""
    return get_mixed_precision_config("bf16_mixed")


def fp16_mixed() -> MixedPrecisionConfig:
    """Compute in float16 with an adapted loss scale, reduce gradients in float16."""
    return get_mixed_precision_config("fp16_mixed")


def get_mixed_precision_config(name: str | MixedPrecisionConfig) -> MixedPrecisionConfig:
    """A fresh config for a name; a config is returned as it is.

    Raises:
        UnknownPrecisionError: no such name; lists them all.
    """
    if isinstance(name, MixedPrecisionConfig):
        return name
    values: Any = PRECISIONS.get(canonical(name))
    if values is None:
        raise UnknownPrecisionError(
            f"no recipe {truncate_repr(name)}; there are {', '.join(PRECISIONS)}", path="mixed_precision"
        )
    return MixedPrecisionConfig(**values)
