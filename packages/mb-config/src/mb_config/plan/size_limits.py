"""Sizes beyond which nothing is planned, because layers and stages are looked at one by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mb_config.plan.errors import PlanError
from mb_config.problems import check
from mb_config.rules.sizes import MAX_LAYERS
from mb_config.rules.sizes import RULES as SIZE_RULES

MAX_STAGES = 1_024
"""Pipeline stages, virtual ones too; also microbatches that one of them runs in a row."""

_PLANNED = ("model", "train", "dataset", "tokenizer")
_LAYERS = ("num_layers", "encoder_num_layers", "vision_num_layers", "mtp_num_layers")
_STAGES = ("pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size")


def reject_sizes(sections: Mapping[str, object]) -> None:
    """Refuse sizes that no machine has memory for.

    Raises:
        PlanError: names each of them.
    """
    known = {name: sections[name] for name in _PLANNED if sections.get(name) is not None}
    problems = check(known, SIZE_RULES)
    if problems:
        raise PlanError("\n".join(str(problem) for problem in problems))


def reject_huge_model(size_of: Callable[[str], Any]) -> None:
    """Refuse a model with more layers or stages than can be looked at.

    Args:
        size_of: Returns a field of the model's section; None: it does not say.

    Raises:
        PlanError: there are more.
    """
    for name in _LAYERS:
        reject_more_than(name, size_of(name) or 0, "layers", most=MAX_LAYERS)
    pp, vp = (size_of(name) or 1 for name in _STAGES)
    reject_more_than(_STAGES[vp > pp], pp * vp, "stages", most=MAX_STAGES)


def reject_more_than(name: str, number: int, things: str, *, most: int) -> None:
    """Refuse a number of things above `most`.

    Raises:
        PlanError: it is.
    """
    if number > most:
        raise PlanError(
            f"model.{name}: {number:,} {things} are more than the {most:,} that are planned, because each is looked at "
            "by itself. Lower it."
        )
