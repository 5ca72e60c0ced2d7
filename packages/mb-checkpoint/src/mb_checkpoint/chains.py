"""Megatron keeps the experts' parameters in an optimizer of their own where they are spread over ranks, and only there.

A state that was stored by another number of optimizers is put together, or divided, for those of this run.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from mb_checkpoint.errors import CheckpointLayoutError

CHANGING = frozenset({"params", "is_expert_parallel", "lr", "step", "weight_decay"})
"""Entries of a parameter group that do not tell which group it is."""


def fit_chain(stored: Mapping[Any, Any], groups: Sequence[Sequence[Mapping[str, Any]]]) -> Mapping[Any, Any]:
    """Return the state that as many optimizers expect as this run has.

    Args:
        stored: The optimizer section as it was read: the tensors as this run asked for them, the rest as it was stored;
            of several optimizers, each under its number.
        groups: Parameter groups of each optimizer of this run.

    Raises:
        CheckpointLayoutError: A parameter group of this run has no counterpart among those that were stored, or it is
            no distributed optimizer.
    """
    numbered = {key: entry for key, entry in sorted(stored.items(), key=str) if isinstance(key, int)}
    shared = {key: entry for key, entry in stored.items() if not isinstance(key, int)}
    parts = [shared] if _has_groups(shared) else [entry for entry in numbered.values() if _has_groups(entry)]
    if len(parts) == len(groups):
        return stored
    if not parts or "optimizer" not in parts[0]:
        raise CheckpointLayoutError(
            f"optimizer: stored as {len(parts)} parts and this run has {len(groups)}, because the expert-parallel "
            "sizes differ; only the distributed optimizer can be put together anew. Use the same size, or "
            "checkpoint.load_optim=false."
        )
    known = [group for part in parts for group in part["optimizer"]["param_groups"]]
    common = {key: entry for part in parts for key, entry in part.items() if key != "param_state"}
    fitted = []
    for number, own in enumerate(groups):
        asked = shared if len(groups) == 1 else stored[number]
        chosen = {**parts[0]["optimizer"], "param_groups": [_counterpart(group, known) for group in own]}
        fitted.append({**common, **asked, "optimizer": chosen})
    return fitted[0] if len(fitted) == 1 else dict(enumerate(fitted))


def _has_groups(part: Mapping[Any, Any]) -> bool:
    """Say whether a part is the whole state of an optimizer: the distributed one keeps the torch one's inside."""
    return "param_groups" in part.get("optimizer", part)


def _counterpart(group: Mapping[str, Any], known: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    for each in known:
        if all(each.get(key) == value for key, value in group.items() if key not in CHANGING and key in each):
            return {**each, **{key: group[key] for key in ("is_expert_parallel",) if key in group}}
    raise CheckpointLayoutError(
        f"optimizer: a parameter group with { {k: v for k, v in group.items() if k not in CHANGING} } is not in the "
        "checkpoint, which was written with another expert-parallel size. Use the same one, or "
        "checkpoint.load_optim=false."
    )
