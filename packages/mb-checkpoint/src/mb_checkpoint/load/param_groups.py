"""Matching of stored parameter groups with those of this run's optimizer. Standard library only.

Megatron Core pairs stored and current groups by their settings, including learning rates, and then takes every setting
from the checkpoint. A changed learning rate therefore finds no counterpart, and changed betas are lost. Here, a group
is paired by its structure first; its settings are those of this run, except for those that the optimizer itself counts.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from mb_checkpoint.errors import CheckpointLayoutError, CheckpointScheduleError

Policy = Literal["configured", "stored", "equal"]
"""Schedule to apply after a load: that of this run, that of the checkpoint, or either, because both are equal."""

Group = Mapping[str, Any]

STRUCTURE = ("is_decoupled_lr", "default_config", "wd_mult", "lr_mult", "optimizer")
"""Entries that identify the parameters of a group; `is_expert_parallel` too, which the parallel layout may change."""

SCHEDULE = ("max_lr", "min_lr", "start_wd", "end_wd")
"""Entries that Megatron's scheduler reads from a group instead of its own values."""

COUNTED = frozenset({"step", "lr", "weight_decay", "initial_lr"})
"""Entries that change during training; the stored value is restored."""

LAYOUT = frozenset({"params", "is_expert_parallel"})
"""Entries that belong to this run's parallel layout."""


def fit_groups(
    stored: Sequence[Group], current: Sequence[Group], *, policy: Policy = "equal"
) -> list[dict[str, Any]]:
    """Return one group for each of `current`, in that order: its settings, with the stored counts of the optimizer.

    Args:
        stored: Groups of the checkpoint.
        current: Groups of this run's optimizer.
        policy: With "stored", the entries of `SCHEDULE` come from the checkpoint.

    Raises:
        CheckpointLayoutError: A group has no counterpart, and the policy is not "configured".
        CheckpointScheduleError: The policy is "equal", and a group and its counterpart have different schedules.
    """
    fitted = []
    for group, counterpart in zip(current, _counterparts(stored, current), strict=True):
        if counterpart is None and policy != "configured":
            shown = {key: group[key] for key in (*STRUCTURE, *SCHEDULE) if key in group}
            raise CheckpointLayoutError(
                f"optimizer: the checkpoint has no parameter group with {shown}, because it was written with other "
                "overrides of the optimizer. Use the same ones, or set scheduler.override_opt_param_scheduler=true "
                "(the configured values apply), or checkpoint.load_optim=false."
            )
        fitted.append(fit_group(stored[0] if counterpart is None else counterpart, group, policy=policy))
    return fitted


def fit_group(stored: Group, current: Group, *, policy: Policy) -> dict[str, Any]:
    """Return the settings of one group, with the values that the optimizer counts taken from its stored counterpart.

    Raises:
        CheckpointScheduleError: See `fit_groups`.
    """
    different = [key for key in SCHEDULE if stored.get(key) != current.get(key)]
    if policy == "equal" and different:
        shown = ", ".join(
            f"{key}: {current.get(key)} here, {stored.get(key)} in the checkpoint" for key in different
        )
        raise CheckpointScheduleError(_schedule_message(f"a parameter group has another schedule ({shown})"))
    # "step": the count of an earlier load is not that of this checkpoint.
    from_checkpoint = {"step"} | COUNTED & stored.keys()
    merged = {**stored, **{key: value for key, value in current.items() if key not in from_checkpoint}}
    return merged | ({key: stored[key] for key in SCHEDULE if key in stored} if policy == "stored" else {})


def group_changes(stored: Sequence[Group], current: Sequence[Group]) -> list[str]:
    """Describe the settings, except those of the schedule, in which groups differ from their counterparts."""
    lines = set()
    for group, counterpart in zip(current, _counterparts(stored, current), strict=True):
        lines |= changes_of(counterpart or group, group)
    return sorted(lines)


def changes_of(stored: Group, current: Group) -> set[str]:
    """Describe the settings, except those of the schedule, in which one group differs from its counterpart."""
    keys = stored.keys() & current.keys() - COUNTED - LAYOUT - {*SCHEDULE, *STRUCTURE}
    return {
        f"{key} {_plain(current[key])} (in the checkpoint: {_plain(stored[key])})"
        for key in keys
        if _plain(stored[key]) != _plain(current[key])
    }


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def groups_of(part: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """Return the mapping inside the state of one optimizer whose entry `param_groups` is the list of groups.

    The distributed and the half-precision optimizer keep torch's state under `optimizer`; the optimizer of several
    modules keeps a copy of it under `param_groups`.
    """
    inner = part.get("optimizer", part)
    groups = inner.get("param_groups")
    return groups if isinstance(groups, Mapping) else inner


def with_groups(part: Mapping[Any, Any], groups: Sequence[Group]) -> dict[Any, Any]:
    """Return the state of one optimizer with other groups."""
    if "optimizer" in part:
        return {**part, "optimizer": with_groups(part["optimizer"], groups)}
    held = part.get("param_groups")
    return {
        **part,
        "param_groups": {**held, "param_groups": list(groups)} if isinstance(held, Mapping) else list(groups),
    }


def _counterparts(stored: Sequence[Group], current: Sequence[Group]) -> list[Group | None]:
    """Return the stored counterpart of each group: best match first, and each stored group once if there are enough."""
    chosen: list[Group | None] = [None] * len(current)
    used: set[int] = set()
    for keys, again in (
        (("is_expert_parallel", *STRUCTURE, *SCHEDULE), False),
        (("is_expert_parallel", *STRUCTURE), False),
        (STRUCTURE, True),  # experts on other ranks: one group becomes two, or two become one
    ):
        for index, group in enumerate(current):
            if chosen[index] is not None:
                continue
            for number, candidate in enumerate(stored):
                if (again or number not in used) and _same(group, candidate, keys):
                    chosen[index] = candidate
                    used.add(number)
                    break
    return chosen


def _same(group: Group, second: Group, keys: Sequence[str]) -> bool:
    return all(group[key] == second[key] for key in keys if key in group and key in second)


ALIASES = {
    "num_steps": ("num_iters",),
    "max_lr": ("start_lr",),
    "lr_warmup_steps": ("warmup_iter", "warmup_steps"),
    "lr_decay_steps": ("end_iter", "decay_steps"),
    "lr_decay_style": ("decay_style",),
}
"""Name in a scheduler's state -> names in older checkpoints."""

SETTINGS = {
    "max_lr": "optimizer.lr",
    "min_lr": "optimizer.min_lr",
    "lr_warmup_steps": "warm-up (sequences)",
    "lr_decay_steps": "decay (sequences)",
    "lr_decay_style": "scheduler.lr_decay_style",
    "init_lr": "scheduler.lr_warmup_init",
    "wsd_decay_steps": "decay phase of WSD (sequences)",
    "lr_wsd_decay_style": "scheduler.lr_wsd_decay_style",
    "start_wd": "weight decay at the start",
    "end_wd": "weight decay at the end",
    "wd_incr_style": "scheduler.weight_decay_incr_style",
    "wd_incr_steps": "growth of the weight decay (sequences)",
}
"""Name in a scheduler's state -> setting that a user changes."""

NOT_IN_MEGATRON_STATE = frozenset({"init_lr", "wsd_decay_steps", "lr_wsd_decay_style"})
"""Settings that shape the learning rate, and that Megatron's scheduler neither stores nor restores."""


def schedule_changes(stored: Mapping[str, Any], current: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return setting -> (stored, own) for each setting in which two states of a scheduler differ.

    Settings that shape neither schedule are left out. Earlier versions rounded a warm-up that is a fraction of the
    decay to whole sequences; that is not a difference.
    """
    changes, consumed = {}, _stored_value(stored, "num_steps")
    for name, setting in SETTINGS.items():
        stored_value, value = _stored_value(stored, name), current.get(name)
        if (
            stored_value is None
            or value is None
            or not any(_shapes(name, settings, consumed) for settings in (stored, current))
        ):
            continue
        if stored_value != value and not (name == "lr_warmup_steps" and is_rounded(stored_value, value)):
            changes[setting] = (stored_value, value)
    return changes


def unstored_settings(stored: Mapping[str, Any]) -> list[str]:
    """Return the settings that shape a stored schedule and are not stored: another program or version wrote it."""
    consumed = _stored_value(stored, "num_steps")
    missing = sorted(
        name for name in NOT_IN_MEGATRON_STATE - stored.keys() if _shapes(name, stored, consumed)
    )
    return [SETTINGS[name] for name in missing]


def _stored_value(stored: Mapping[str, Any], name: str) -> Any:
    names = [alias for alias in (name, *ALIASES.get(name, ())) if alias in stored]
    return stored[names[0]] if names else None


def _shapes(name: str, state: Mapping[str, Any], consumed: int | None) -> bool:
    """Return whether a setting in the state of a scheduler affects learning rates after `consumed` sequences."""
    if name == "init_lr":
        return bool((_stored_value(state, "lr_warmup_steps") or 0) > (consumed or 0))
    return name not in NOT_IN_MEGATRON_STATE or _stored_value(state, "lr_decay_style") == "WSD"


def is_rounded(stored: Any, current: Any) -> bool:
    """Return whether a stored number of warm-up sequences is this run's fractional number, rounded."""
    return (
        isinstance(stored, int)
        and isinstance(current, float)
        and not current.is_integer()
        and stored == round(current)
    )


def reject_schedule_change(changes: Mapping[str, tuple[Any, Any]]) -> None:
    """Reject a schedule that differs from the stored one, if the configuration selects neither.

    Raises:
        CheckpointScheduleError: There are changes.
    """
    if changes:
        raise CheckpointScheduleError(
            _schedule_message(f"differs from the checkpoint's ({describe(changes)})")
        )


def reject_unstored_settings(unstored: Sequence[str], changes: Mapping[str, tuple[Any, Any]]) -> None:
    """Reject the continuation of a stored schedule that is only known in part, and differs from this run's.

    Raises:
        CheckpointScheduleError: There are changes and settings that are not stored.
    """
    if unstored and changes:
        raise CheckpointScheduleError(
            f"scheduler.use_checkpoint_opt_param_scheduler: the checkpoint does not hold {', '.join(unstored)}, and "
            f"other settings differ ({describe(changes)}). The stored schedule cannot be continued without them. Set "
            "the schedule as in the run of the checkpoint, or scheduler.override_opt_param_scheduler=true instead."
        )


def describe(changes: Mapping[str, tuple[Any, Any]]) -> str:
    """Format changes in one line."""
    return ", ".join(
        f"{name}: {value} here, {stored_value} in the checkpoint"
        for name, (stored_value, value) in changes.items()
    )


def _schedule_message(problem: str) -> str:
    return (
        f"scheduler: {problem}. A resumed run follows one of the two, and neither is chosen. Set "
        "scheduler.override_opt_param_scheduler=true to use the configured values, or "
        "scheduler.use_checkpoint_opt_param_scheduler=true to use the stored ones (in Megatron-LM "
        "--override-opt-param-scheduler and --use-checkpoint-opt-param-scheduler)."
    )
