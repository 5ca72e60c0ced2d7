"""The settings of torch's CUDA allocator, as its environment variables hold them."""

from __future__ import annotations

from collections.abc import Mapping

ALLOCATOR_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""The variables that torch reads; the second is the name since torch 2.9."""


def expandable_segments(env: Mapping[str, str]) -> str | None:
    """Return the variable that switches expandable segments on, None where neither does.

    torch skips blanks in the value, and takes "True" alone for on. Which of the two it prefers depends on its version.
    """
    for name in ALLOCATOR_VARIABLES:
        if "expandable_segments:True" in env.get(name, "").replace(" ", "").split(","):
            return name
    return None
