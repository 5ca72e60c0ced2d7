"""Settings of torch's CUDA allocator in environment variables."""

from __future__ import annotations

from collections.abc import Mapping

ALLOCATOR_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""Variables that torch reads. The second is the name since torch 2.9."""


def expandable_segments(env: Mapping[str, str]) -> str | None:
    """Return the variable that enables expandable segments, or None.

    torch ignores spaces in the value, and accepts only "True". The precedence of the variables depends on its version.
    """
    for name in ALLOCATOR_VARIABLES:
        if "expandable_segments:True" in env.get(name, "").replace(" ", "").split(","):
            return name
    return None
