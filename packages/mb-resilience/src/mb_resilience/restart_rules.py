"""Rules on the section `inprocess_restart`. Standard library only."""

from typing import Any

from mb_resilience._rules import Rule
from mb_resilience.paths import path_rule
from mb_resilience.unused_settings import Defaults, unused_while_disabled

PATH_FIELDS = ("inprocess_restart.monitor_process_logdir",)
"""Fields that hold paths of files or folders."""

_PATHS = tuple(Rule(**path_rule(number, path)) for number, path in enumerate(PATH_FIELDS, start=71))

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
        given = {path.split(".")[1]: value for path, value in zip(read, values, strict=True)}
        if not given["enabled"]:
            return None
        for name, least in _COUNTS.items():
            if given[name] is not None and given[name] < least:
                return f"{name}={given[name]} is below {least}"
        for shorter, longer in _ORDERED_TIMES:
            if not 0 < given[shorter] < given[longer]:
                return f"{shorter}={given[shorter]} is not between 0 and {longer}={given[longer]}"
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


def restart_rules(defaults: Defaults) -> tuple[Rule, ...]:
    """Return the rules on the section."""
    unused = unused_while_disabled("R14", defaults, switch="inprocess_restart.enabled")
    return (*_PATHS, unused, _valid_settings(defaults))
