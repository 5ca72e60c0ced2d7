"""Resolution of the precision recipe into model, optimizer and ddp."""

from __future__ import annotations

from copy import deepcopy

from mb_config.resolve.precision_recipes import get_mixed_precision_config
from mb_config.resolve.precision_table import CORE, precision_values
from mb_config.resolve.state import Priority, ResolverState
from mb_schema.rule_kinds import shown


def resolve_precision(state: ResolverState) -> None:
    """Copy each field of the recipe to every section that has it. `mixed_precision` itself is not modified.

    A value of at least the recipe's priority is kept; in `CORE` it is a conflict. A field of the recipe that is None
    is not copied to a field whose default is not None.

    Raises:
        UnknownPrecisionError: If there is no recipe of that name.
        ConfigError: If the recipe is inconsistent (V013 to V015, V122).
    """
    chosen = state.config.mixed_precision
    if chosen is None:
        return
    recipe = deepcopy(get_mixed_precision_config(chosen))
    recipe.finalize()
    name = chosen if isinstance(chosen, str) else "mixed_precision"
    for path, value in precision_values(recipe, state.config):
        leaf = path.partition(".")[2]
        priority = max(state.priority("mixed_precision"), state.priority(f"mixed_precision.{leaf}"))
        own_priority = state.priority(path)
        if own_priority < priority or own_priority == Priority.COMPUTED:
            state.set(path, value, rule="V017", why=f"precision recipe {name}")
        elif leaf in CORE:
            state.conflict(
                (path, "mixed_precision"),
                rule="V017",
                message=(f"is {shown(state.get(path))}, but the precision recipe {name} sets {shown(value)}"),
                why="this field defines the recipe",
                fix=f"Leave {path} unset, or choose another mixed_precision.",
            )
