"""Compute capabilities of GPUs by name, and the number formats that they support.

The capabilities are those of NVIDIA's table "CUDA GPU Compute Capability".
"""

from __future__ import annotations

from collections.abc import Mapping

from mb_schema.gpu_names import find_short_name

CAPABILITIES: Mapping[str, tuple[int, int]] = {
    "v100": (7, 0),
    "t4": (7, 5),
    "a100": (8, 0),
    "a800": (8, 0),
    "a30": (8, 0),
    "a10": (8, 6),
    "a40": (8, 6),
    "l4": (8, 9),
    "l40": (8, 9),
    "l40s": (8, 9),
    "h20": (9, 0),
    "h100": (9, 0),
    "h200": (9, 0),
    "h800": (9, 0),
    "gh200": (9, 0),
    "b200": (10, 0),
    "gb200": (10, 0),
    "b300": (10, 3),
    "gb300": (10, 3),
}
"""Short name of a GPU to its compute capability, major and minor."""

KNOWN: tuple[str, ...] = (*CAPABILITIES, "mi300x")
"""Short names of the GPUs with a known compute capability or memory size."""


def capability(gpu: str) -> tuple[int, int] | None:
    """Return the compute capability of a GPU by its name, or None if it is not in the table."""
    return CAPABILITIES.get(find_short_name(gpu, KNOWN) or "")


def unsupported_format(gpu: str, *, bf16: object, fp8: object, fp8_recipe: object, fp4: object) -> str | None:
    """Return a description of the requested number format that a GPU is too old for; None if there is none.

    The formats are those of the fields of a precision recipe or a model. A GPU that is not in the table supports all.
    """
    version = capability(gpu)
    if version is None:
        return None
    needs = (
        (fp4, "FP4", (10, 0)),
        (fp8 and fp8_recipe == "mxfp8", "MXFP8", (10, 0)),
        (fp8 and fp8_recipe == "blockwise", "blockwise FP8", (9, 0)),
        (fp8, "FP8", (8, 9)),
        (bf16, "bfloat16", (8, 0)),
    )
    for requested, what, needed in needs:
        if requested and version < needed:
            return f"{what} requires compute capability {_dotted(needed)}, but {gpu} has {_dotted(version)}"
    return None


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
