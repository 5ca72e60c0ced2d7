"""Compilation: everything runs as written."""

from collections.abc import Callable
from typing import Any

import torch


def skip_compile(model: Callable[..., Any] | None = None, **_options: object) -> Callable[..., Any]:
    """Stand in for `torch.compile`, with and without decorator arguments: return the function itself."""
    if model is None:
        return lambda function: function
    return model


def replace_compile() -> None:
    """Make `torch.compile` the identity.

    Megatron binds it while it is imported; the real one would pull in the compiler, which doubles the time of that
    import.
    """
    torch.compile = skip_compile
