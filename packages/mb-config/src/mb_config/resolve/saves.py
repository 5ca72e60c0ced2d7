"""Interval of checkpoints that is computed: `checkpoint.save_interval=auto`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mb_config.container.field_access import get_field, set_field
from mb_config.overrides.provenance import Provenance, remember_resolved
from mb_config.resolve.state import Change

PATH, AUTO = "checkpoint.save_interval", "auto"
UNPLANNED = 500
"""Interval in steps if the time of a step is not predicted, as without a GPU."""


def resolve_save_interval(config: Any, planned: Mapping[str, Any], *, provenance: Provenance) -> list[Change]:
    """Replace "auto" by a number of steps, and return the change; none if the interval is another one.

    With `checkpoint.best_metric`, which is measured by evaluations, it is a multiple of their interval.

    Args:
        config: A container.
        planned: Facts of its plan.
        provenance: Origins of the values; receives the change.
    """
    if get_field(config, PATH) != AUTO:
        return []
    steps = planned.get("best_save_interval", UNPLANNED)
    why = planned.get("save_interval_reason", "the time of a step is not predicted here")
    evaluations = config.validation.eval_interval
    if get_field(config, "checkpoint.best_metric") and evaluations:
        steps = evaluations * max(1, round(steps / evaluations))
        why += "; a multiple of validation.eval_interval"
    set_field(config, PATH, steps)
    provenance.note(PATH, f"resolve: {AUTO}")
    # the run's file keeps "auto", since a restart on other GPUs has another interval
    remember_resolved(config, PATH, steps, rule=AUTO, of_run=True, written=AUTO)
    return [Change(field=PATH, old=AUTO, new=steps, rule=AUTO, why=why)]
