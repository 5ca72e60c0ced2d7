"""Replacement of `torch.compile` by the identity."""

from collections.abc import Callable
from typing import Any

import torch


def skip_compile(
    model: Callable[..., Any] | None = None, *_args: object, **_kwargs: object
) -> Callable[..., Any]:
    """Substitute for `torch.compile`, with and without decorator arguments: return the function itself."""
    if model is None:
        return lambda function: function
    return model


def replace_compile() -> None:
    """Make `torch.compile` the identity.

    Megatron calls it during its import; torch's function would import the compiler, which doubles the import time.
    """
    torch.compile = skip_compile
