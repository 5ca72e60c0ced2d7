"""Values of the field `perf`: a GPU or "auto", with the precision that it selects. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass

from mb_schema.gpu_capabilities import CAPABILITIES
from mb_schema.gpu_names import find_short_name

AUTO = "auto"
OLDEST = (8, 0)
"""Compute capability of the oldest GPUs that have a table of settings (A100)."""
PRECISIONS = ("fp8", "nvfp4")
"""Suffixes: `perf=h100_fp8`. Without one the precision is BF16, or that of the recipe."""
HOPPER, BLACKWELL = (9, 0), (10, 0)

GPUS: tuple[str, ...] = tuple(name for name, found in CAPABILITIES.items() if found >= OLDEST)
"""GPUs that have a table of settings."""


@dataclass(frozen=True, slots=True)
class PerfName:
    """A value of `perf`, split."""

    gpu: str
    """Short name, or "auto"."""
    precision: str
    """One of `PRECISIONS`, or empty."""


def read_name(text: str) -> PerfName | None:
    """Return a value of `perf`, split; None if it is none."""
    gpu, _, precision = text.partition("_")
    known = gpu in (AUTO, *GPUS) and precision in ("", *PRECISIONS) and text.count("_") == bool(precision)
    return PerfName(gpu, precision) if known else None


def gpu_of(name: PerfName, found: object) -> str | None:
    """Return the GPU that a value names; `found`: the GPU of the machine. None: there is none, or no table."""
    if name.gpu != AUTO:
        return name.gpu
    gpu = find_short_name(found, CAPABILITIES) if isinstance(found, str) else None
    return gpu if gpu in GPUS else None


def has_precision(gpu: str, precision: str) -> bool:
    """Return whether the tensor cores of a GPU compute in a precision of `PRECISIONS`."""
    needed = {"fp8": (8, 9), "nvfp4": BLACKWELL}
    return CAPABILITIES[gpu] >= needed.get(precision, OLDEST)
