"""Rules on the section `inprocess_restart`. Standard library only."""

from functools import partial

from mb_resilience.config import InProcessRestartConfig
from mb_resilience.rule_kinds import (
    defaults_of,
    requires_nvrx,
    requires_nvrx_version,
    unused_while_disabled,
)
from mb_schema.paths import path_rule
from mb_schema.rule_kinds import excludes, section_rule
from mb_schema.rules import Rule, rules_in

inprocess_restart_rule = partial(section_rule, "inprocess_restart")

PATH_FIELDS = ("inprocess_restart.monitor_process_logdir",)
"""Fields that hold paths of files or folders."""

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

_DEFAULTS = defaults_of(InProcessRestartConfig)
_LIMITS = {
    name: default
    for name, default in _DEFAULTS.items()
    if name.endswith(("_interval", "_timeout")) or name in _COUNTS
}


@inprocess_restart_rule(
    "R35",
    others=_LIMITS,
    why="a polling interval must be shorter than its timeout, and the barrier of a restart must outlast all timeouts",
    fix="Set intervals below their timeouts, and soft_timeout < hard_timeout < barrier_timeout.",
    fails={**_LIMITS, "enabled": True, "soft_timeout": 100.0},
    passes={"soft_timeout": _LIMITS["soft_timeout"]},
)
def _rejected_by_nvrx(enabled, **limits):
    if not enabled:
        return None
    for name, least in _COUNTS.items():
        if limits[name] is not None and limits[name] < least:
            return f"{name}={limits[name]} is below {least}"
    for shorter, longer in _ORDERED_TIMES:
        if not 0 < limits[shorter] < limits[longer]:
            return f"{shorter}={limits[shorter]} is not between 0 and {longer}={limits[longer]}"
    return None


@inprocess_restart_rule(
    "R42",
    why="each active rank is a process; processes beyond them are spare ranks",
    fix="Start more processes, or set active_world_size to the number of ranks that train, or to null for all.",
    fails={"enabled": True, "active_world_size": 4, "processes": 2},
    passes={"active_world_size": 2, "processes": 3},
)
def _more_active_ranks_than_processes(enabled, active_world_size, *, processes):
    if not enabled or active_world_size is None or active_world_size <= processes:
        return None
    return f"active_world_size={active_world_size} is greater than the {processes} processes of the run"


@inprocess_restart_rule(
    "R43",
    why="a run that fails in each attempt, such as at the same step, is restarted forever",
    fix="Set inprocess_restart.max_iterations to the number of faults that the run may have.",
    fails={"enabled": True},
    passes={"max_iterations": 10},
    severity="warning",
)
def _unlimited_restarts(enabled, max_iterations):
    if enabled and max_iterations is None:
        return "the number of restarts is not limited (max_iterations=null)"
    return None


@inprocess_restart_rule(
    "R44",
    why="no rank remains that could continue; a rank that raises is restarted in any case",
    fix="Set inprocess_restart.granularity=rank, or start the run on several nodes.",
    fails={"enabled": True, "granularity": "node", "processes": 4, "local_world_size": 4},
    passes={"granularity": "rank"},
    severity="warning",
)
def _only_node_excluded(enabled, granularity, *, processes, local_world_size):
    if enabled and granularity == "node" and processes == local_world_size and processes > 1:
        return f"granularity=node excludes all {processes} ranks of the only node when one of them dies"
    return None


RULES: tuple[Rule, ...] = (
    *(path_rule(number, path) for number, path in enumerate(PATH_FIELDS, start=71)),
    unused_while_disabled("R14", "inprocess_restart", InProcessRestartConfig, switch="enabled"),
    *rules_in(globals()),
    requires_nvrx(
        "R45",
        "inprocess_restart.enabled",
        why="its wrapper restarts the training function",
        fix="Install mb-resilience[nvrx], or set inprocess_restart.enabled=false.",
    ),
    requires_nvrx_version("R46", "inprocess_restart.enabled"),
    excludes(
        "R47",
        {"inprocess_restart.enabled": True, "ft.enable_ft_package": True},
        why="the launcher's monitor kills a rank by the time of its sections, which does not include restarts",
        fix="Set ft.enable_ft_package=false: hanging ranks are found by soft_timeout and hard_timeout.",
    ),
)
