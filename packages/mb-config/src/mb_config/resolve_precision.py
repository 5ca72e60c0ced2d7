"""Spread the precision recipe over model, optimizer and wrapper."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from mb_config.precision_recipes import get_mixed_precision_config
from mb_config.resolution import Resolution

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
    section, _, leaf = path.partition(".")
    if not run.has(path) or run.get(path) == value:
        return
    if value is None and not _may_be_none(getattr(run.config, section), leaf):
        return
    if not 0 < run.rank(path) >= weight:
        run.set(path, value, rule="V017", why=f"precision recipe {name}")
    elif leaf in _CORE:
        run.conflict(
            (path, "mixed_precision"),
            rule="V017",
            message=f"is {run.get(path)}, but the precision recipe {name} wants {value}",
            why="the recipe would not be that recipe any more",
            fix=f"Leave {path} unset, or choose another mixed_precision.",
        )


def _may_be_none(section: Any, name: str) -> bool:
    """True if None is the field's own default."""
    if not is_dataclass(section):
        return True
    item = next((item for item in fields(section) if item.name == name), None)
    return item is not None and item.default is None and item.default_factory is MISSING
