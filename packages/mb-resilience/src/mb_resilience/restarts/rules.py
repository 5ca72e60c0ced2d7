"""Rules on the section `inprocess_restart`. Standard library only."""

from functools import partial
from typing import Any

from mb_resilience.rule_kinds import Defaults, requires_nvrx, requires_nvrx_version, unused_while_disabled
from mb_schema.paths import path_rule
from mb_schema.rule_kinds import excludes, section_rule
from mb_schema.rules import Rule

inprocess_restart_rule = partial(section_rule, "inprocess_restart")

PATH_FIELDS = ("inprocess_restart.monitor_process_logdir",)
"""Fields that hold paths of files or folders."""

_PATHS = tuple(path_rule(number, path) for number, path in enumerate(PATH_FIELDS, start=71))

_ORDERED_TIMES = (
    ("soft_timeout", "hard_timeout"),
    ("hard_timeout", "barrier_timeout"),
    ("heartbeat_interval", "heartbeat_timeout"),
    ("heartbeat_timeout", "barrier_timeout"),
    ("monitor_process_interval", "heartbeat_timeout"),
    ("monitor_process_interval", "soft_timeout"),
    ("monitor_thread_interval", "soft_timeout"),
    ("progress_watchdog_interval", "soft_timeout"),
)
"""Pairs of times of a restart, the shorter one first."""

_COUNTS = {"max_iterations": 0, "max_rank_faults": 0, "active_world_size": 1}
"""Numbers that may be None, with their minimum."""


def _valid_settings(defaults: Defaults) -> Rule:
    """Return a rule that rejects what NVRx's wrapper rejects: times in the wrong order, and counts that are too low."""
    read = {
        path: default
        for path, default in defaults.items()
        if path.endswith(("_interval", "_timeout")) or path.split(".")[1] in ("enabled", *_COUNTS)
    }

    def test(*values: Any) -> str | None:
        value_of = {path.split(".")[1]: value for path, value in zip(read, values, strict=True)}
        if not value_of["enabled"]:
            return None
        for name, least in _COUNTS.items():
            if value_of[name] is not None and value_of[name] < least:
                return f"{name}={value_of[name]} is below {least}"
        for shorter, longer in _ORDERED_TIMES:
            if not 0 < value_of[shorter] < value_of[longer]:
                return f"{shorter}={value_of[shorter]} is not between 0 and {longer}={value_of[longer]}"
        return None

    return Rule(
        id="R35",
        fields=tuple(read),
        test=test,
        why="a polling interval must be shorter than its timeout, "
        "and the barrier of a restart must outlast all timeouts",
        fix="Set intervals below their timeouts, and soft_timeout < hard_timeout < barrier_timeout.",
        fails={**read, "inprocess_restart.enabled": True, "inprocess_restart.soft_timeout": 100.0},
        passes={**read, "inprocess_restart.enabled": True},
    )


_ENABLED = "inprocess_restart.enabled"

_ENOUGH_PROCESSES = inprocess_restart_rule(
    "R42",
    why="each active rank is a process; processes beyond them are spare ranks",
    fix="Start more processes, or set active_world_size to the number of ranks that train, or to null for all.",
    fails={"enabled": True, "active_world_size": 4, "processes": 2},
    passes={"active_world_size": 2, "processes": 3},
)(
    lambda enabled, active_world_size, *, processes: (
        f"active_world_size={active_world_size} is greater than the {processes} processes of the run"
        if enabled and active_world_size is not None and active_world_size > processes
        else None
    )
)

_LIMITED = inprocess_restart_rule(
    "R43",
    why="a run that fails in each attempt, such as at the same step, is restarted forever",
    fix="Set inprocess_restart.max_iterations to the number of faults that the run may have.",
    fails={"enabled": True},
    passes={"max_iterations": 10},
    severity="warning",
)(
    lambda enabled, max_iterations: (
        "the number of restarts is not limited (max_iterations=null)"
        if enabled and max_iterations is None
        else None
    )
)

_ONE_NODE = inprocess_restart_rule(
    "R44",
    why="no rank remains that could continue; a rank that raises is restarted in any case",
    fix="Set inprocess_restart.granularity=rank, or start the run on several nodes.",
    fails={"enabled": True, "granularity": "node", "processes": 4, "local_world_size": 4},
    passes={"granularity": "rank"},
    severity="warning",
)(
    lambda enabled, granularity, *, processes, local_world_size: (
        f"granularity=node excludes all {processes} ranks of the only node when one of them dies"
        if enabled and granularity == "node" and processes == local_world_size and processes > 1
        else None
    )
)

_ONE_MONITOR = excludes(
    "R47",
    {_ENABLED: True, "ft.enable_ft_package": True},
    why="the launcher's monitor kills a rank by the time of its sections, which does not include restarts",
    fix="Set ft.enable_ft_package=false: hanging ranks are found by soft_timeout and hard_timeout.",
)


def restart_rules(defaults: Defaults) -> tuple[Rule, ...]:
    """Return the rules on the section."""
    unused = unused_while_disabled("R14", defaults, switch="inprocess_restart.enabled")
    installed = requires_nvrx(
        "R45",
        _ENABLED,
        why="its wrapper restarts the training function",
        fix=f"Install mb-resilience[nvrx], or set {_ENABLED}=false.",
    )
    version = requires_nvrx_version("R46", _ENABLED)
    own = (_ENOUGH_PROCESSES, _LIMITED, _ONE_NODE, _ONE_MONITOR)
    return (*_PATHS, unused, _valid_settings(defaults), installed, version, *own)
