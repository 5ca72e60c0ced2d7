"""Spread the precision recipe over model, optimizer and wrapper."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import fields

from mb_config.access import UNKNOWN, default_of
from mb_config.precision_recipes import get_mixed_precision_config
from mb_config.resolution import Resolution
from mb_config.rules.wording import shown

_TARGETS = ("model", "optimizer", "ddp")
_CORE = ("bf16", "fp16", "params_dtype")
"""Fields without which the recipe would not be the recipe: to hold another value is a conflict."""


def apply_precision(run: Resolution) -> None:
    """Give each field of the recipe to every section that has it. `mixed_precision` itself stays as it is.

    A value that carries at least as much weight as the recipe is kept; in `_CORE` it is a conflict. None leaves a
    field alone whose own default is not None.

    Raises:
        UnknownPrecisionError: no recipe of that name.
        ConfigError: the recipe contradicts itself (V013 to V015, V122).
    """
    chosen = run.config.mixed_precision
    if chosen is None:
        return
    recipe = deepcopy(get_mixed_precision_config(chosen))
    recipe.finalize()
    name = chosen if isinstance(chosen, str) else "mixed_precision"
    for item in fields(recipe):
        weight = max(run.rank("mixed_precision"), run.rank(f"mixed_precision.{item.name}"))
        for target in _TARGETS:
            _apply(run, f"{target}.{item.name}", getattr(recipe, item.name), name=name, weight=weight)


def _apply(run: Resolution, path: str, value: object, *, name: str, weight: int) -> None:
    leaf = path.partition(".")[2]
    if not run.has(path) or run.get(path) == value:
        return
    if value is None and default_of(run.config, path) not in (None, UNKNOWN):
        return
    if not 0 < run.rank(path) >= weight:
        run.set(path, value, rule="V017", why=f"precision recipe {name}")
    elif leaf in _CORE:
        run.conflict(
            (path, "mixed_precision"),
            rule="V017",
            message=f"is {shown(run.get(path))}, but the precision recipe {name} sets {shown(value)}",
            why="the recipe would not be that recipe any more",
            fix=f"Leave {path} unset, or choose another mixed_precision.",
        )
