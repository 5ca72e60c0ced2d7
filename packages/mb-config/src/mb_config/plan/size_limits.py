"""Limits on the sizes of a plan, because layers and stages are processed one by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mb_config.plan.errors import PlanError
from mb_config.preflight.problems import check
from mb_config.rules.sizes import MAX_LAYERS
from mb_config.rules.sizes import RULES as SIZE_RULES

MAX_STAGES = 1_024
"""Maximum number of pipeline stages, including virtual ones, and of consecutive microbatches of a virtual stage."""

_PLANNED = ("model", "train", "dataset", "tokenizer")
_LAYERS = ("num_layers", "encoder_num_layers", "vision_num_layers", "mtp_num_layers")
_STAGES = ("pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size")


def reject_sizes(sections: Mapping[str, object]) -> None:
    """Reject sizes that exceed the memory of any machine.

    Raises:
        PlanError: If there are such sizes; contains each of them.
    """
    known = {name: sections[name] for name in _PLANNED if sections.get(name) is not None}
    problems = check(known, SIZE_RULES)
    if problems:
        raise PlanError("\n".join(str(problem) for problem in problems))


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
    reject_more_than(_STAGES[vp > pp], pp * vp, "stages", most=MAX_STAGES)


def reject_more_than(name: str, number: int, things: str, *, most: int) -> None:
    """Reject a number above `most`.

    Raises:
        PlanError: If the number is above `most`.
    """
    if number > most:
        raise PlanError(
            f"model.{name}: {number:,} {things} exceed the limit of {most:,}, because each is processed separately. "
            "Lower it."
        )
