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
        CheckpointLayoutError: The section has no parameter groups; or see `fit_groups`.
        CheckpointScheduleError: See `fit_groups`.
    """
    parts = parts_of(stored)
    if len(parts) == len(groups):
        fitted = [
            _fit_part(
                part, part_groups, fit_groups(groups_of(part)["param_groups"], part_groups, policy=policy)
            )
            for part, part_groups in zip(parts, groups, strict=True)
        ]
        return fitted[0] if len(fitted) == 1 else {**stored, **dict(enumerate(fitted))}
    if not parts:
        raise CheckpointLayoutError(
            f"optimizer: stored without parameter groups, and this run has {len(groups)} optimizers with some, so that "
            "their tensors cannot be assigned. Use another checkpoint, or checkpoint.load_optim=false."
        )
    # What is not a tensor is where the stored optimizers had it, tensors are where those of this run requested them.
    nested = "optimizer" in parts[0]
    inner_parts = [part["optimizer"] if nested else part for part in parts]
    stored_groups = [group for part in parts for group in groups_of(part)["param_groups"]]
    common = {key: entry for part in parts for key, entry in part.items() if nested and key != "param_state"}
    inner_common = {key: entry for inner in inner_parts for key, entry in inner.items() if key != "state"}
    counts = {key: entry for inner in inner_parts for key, entry in inner.get("state", {}).items()}
    shared = _without_numbers(stored)
    fitted = []
    for number, part_groups in enumerate(groups):
        requested = shared if len(groups) == 1 else stored[number]
        tensors = requested.get("optimizer", {}) if nested else requested
        state = {**counts, **tensors.get("state", {})}
        inner = {**inner_common, **tensors, **({"state": state} if state else {})}
        part = {**common, **requested, "optimizer": inner} if nested else inner
        fitted.append(_fit_part(part, part_groups, fit_groups(stored_groups, part_groups, policy=policy)))
    return fitted[0] if len(fitted) == 1 else dict(enumerate(fitted))


def _fit_part(
    part: Mapping[Any, Any], part_groups: Sequence[Mapping[str, Any]], fitted: Sequence[Mapping[str, Any]]
) -> dict[Any, Any]:
    """Return the state of an optimizer with fitted groups, and the numbers of parameters that Megatron put there."""
    requested = groups_of(part)["param_groups"]
    if len(requested) == len(part_groups):
        fitted = [
            {**group, "params": own.get("params", group["params"])}
            for group, own in zip(fitted, requested, strict=True)
        ]
    return with_groups(part, fitted)


def parts_of(stored: Mapping[Any, Any]) -> list[Mapping[Any, Any]]:
    """Return the state of each optimizer of a section, in order."""
    numbered = {key: stored[key] for key in sorted(key for key in stored if isinstance(key, int))}
    shared = _without_numbers(stored)
    if _has_groups(shared):
        return [shared if numbered else stored]
    return [entry for entry in numbered.values() if _has_groups(entry)]


def _without_numbers(stored: Mapping[Any, Any]) -> dict[Any, Any]:
    return {key: entry for key, entry in stored.items() if not isinstance(key, int)}


def _has_groups(part: Mapping[Any, Any]) -> bool:
    """Return whether a part has the groups of an optimizer with their settings; a request has their numbers alone."""
    if "param_groups" not in part.get("optimizer", part):
        return False
    groups = groups_of(part)["param_groups"]
    return not isinstance(groups, list) or not groups or any(group.keys() - {"params"} for group in groups)
