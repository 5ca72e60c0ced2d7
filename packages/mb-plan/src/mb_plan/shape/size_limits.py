"""Limits on the sizes of a plan, because layers and stages are processed one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mb_plan.errors import PlanError

MAX_LAYERS = 10_000
"""Maximum number of layers of each kind."""
MAX_STAGES = 1_024
"""Maximum number of pipeline stages, including virtual ones, and of consecutive microbatches of a virtual stage."""

_LAYERS = ("num_layers", "encoder_num_layers", "vision_num_layers", "mtp_num_layers")
_STAGES = ("pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size")


def reject_huge_model(size_of: Callable[[str], Any]) -> None:
    """Reject a model with more layers or stages than the limits.

    Args:
        size_of: Function that returns a field of the model section, or None if it is not set.

    Raises:
        PlanError: If a limit is exceeded.
    """
    for name in _LAYERS:
        reject_more_than(name, size_of(name) or 0, "layers", most=MAX_LAYERS)
    pp, vp = (size_of(name) or 1 for name in _STAGES)
    larger = _STAGES[1] if vp > pp else _STAGES[0]
    reject_more_than(larger, pp * vp, "stages", most=MAX_STAGES)


def reject_more_than(name: str, number: int, unit: str, *, most: int) -> None:
    """Reject a number above `most`.

    Raises:
        PlanError: If the number is above `most`.
    """
    if number > most:
        raise PlanError(
            f"model.{name}: {number:,} {unit} exceed the limit of {most:,}, because each is processed separately. "
            "Lower it."
        )
