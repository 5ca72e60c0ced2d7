"""Conversion of optimizer states between different numbers of chained optimizers.

Megatron Core keeps the parameters of experts in an optimizer of their own if, and only if, the experts are distributed
over ranks. A state that another number of optimizers has stored is merged, or split, for the optimizers of this run.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from mb_checkpoint.errors import CheckpointLayoutError
from mb_checkpoint.load.param_groups import Policy, fit_groups, groups_of, with_groups


def fit_chained_state(
    stored: Mapping[Any, Any], groups: Sequence[Sequence[Mapping[str, Any]]], *, policy: Policy = "equal"
) -> dict[Any, Any]:
    """Return a stored state in the form that the optimizers of this run load, with this run's parameter groups.

    Args:
        stored: The optimizer section as read: tensors as requested by this run, everything else as stored; with several
            optimizers, each under its number.
        groups: Parameter groups of each optimizer of this run.
        policy: Schedule to apply; see `param_groups.fit_groups`.

    Raises:
        CheckpointLayoutError: The numbers of optimizers differ and the optimizers are not distributed ones; or see
            `fit_groups`.
        CheckpointScheduleError: See `fit_groups`.
    """
    parts = parts_of(stored)
    if len(parts) == len(groups):
        fitted = [
            _fit_part(part, part_groups, policy=policy)
            for part, part_groups in zip(parts, groups, strict=True)
        ]
        if len(fitted) == 1:
            return fitted[0]
        return {**stored, **dict(enumerate(fitted))}
    if not parts or "optimizer" not in parts[0]:
        raise CheckpointLayoutError(
            f"optimizer: stored as {len(parts)} parts and this run has {len(groups)}, because the expert-parallel "
            "sizes differ; only the state of the distributed optimizer can be regrouped. Use the same size, or "
            "checkpoint.load_optim=false."
        )
    shared = {key: entry for key, entry in stored.items() if not isinstance(key, int)}
    stored_groups = [group for part in parts for group in part["optimizer"]["param_groups"]]
    common = {key: entry for part in parts for key, entry in part.items() if key != "param_state"}
    fitted = []
    for number, part_groups in enumerate(groups):
        requested = shared if len(groups) == 1 else stored[number]
        chosen = {
            **parts[0]["optimizer"],
            "param_groups": fit_groups(stored_groups, part_groups, policy=policy),
        }
        fitted.append({**common, **requested, "optimizer": chosen})
    return fitted[0] if len(fitted) == 1 else dict(enumerate(fitted))


def _fit_part(
    part: Mapping[Any, Any], part_groups: Sequence[Mapping[str, Any]], *, policy: Policy
) -> dict[Any, Any]:
    stored = groups_of(part)["param_groups"]
    fitted = fit_groups(stored, part_groups, policy=policy)
    # Megatron has put this run's own numbers of parameters there, in this order.
    if len(stored) == len(part_groups):
        fitted = [
            {**group, "params": stored_group.get("params", group["params"])}
            for group, stored_group in zip(fitted, stored, strict=True)
        ]
    return with_groups(part, fitted)


def parts_of(stored: Mapping[Any, Any]) -> list[Mapping[Any, Any]]:
    """Return the state of each optimizer of a section, in order."""
    numbered = {key: stored[key] for key in sorted(key for key in stored if isinstance(key, int))}
    shared = {key: entry for key, entry in stored.items() if not isinstance(key, int)}
    if _has_groups(shared):
        return [shared if numbered else stored]
    return [entry for entry in numbered.values() if _has_groups(entry)]


def _has_groups(part: Mapping[Any, Any]) -> bool:
    """Return whether a part is the complete state of an optimizer; the distributed one nests the state of torch's."""
    return "param_groups" in part.get("optimizer", part)
