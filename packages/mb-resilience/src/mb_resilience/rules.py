"""Rules on the configuration sections of this package. Pure functions, standard library only."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from mb_resilience.config import (
    FaultToleranceConfig,
    InProcessRestartConfig,
    NVRxStragglerDetectionConfig,
    RerunStateMachineConfig,
    StragglerDetectionConfig,
)
from mb_resilience.paths import path_rule
from mb_resilience.value_types import reject_wrong_types

MIN_NVRX_VERSION = (0, 3)
"""Oldest supported release of nvidia-resiliency-ext."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Condition on fields, with the reason and the fix to print if it is violated."""

    id: str
    fields: tuple[str, ...]
    test: Callable[..., str | None]
    why: str
    fix: str
    severity: Literal["error", "warning"] = "error"
    fails: Mapping[str, object]
    passes: Mapping[str, object]


def _detector_settings_valid(
    enabled: bool, relative: bool, individual: bool, interval: float, thresholds: tuple[float, float]
) -> str | None:
    if not enabled:
        return None
    if not (relative or individual):
        return "calc_relative_gpu_perf=false and calc_individual_gpu_perf=false leave no score to calculate"
    if interval <= 0:
        return f"report_time_interval={interval} is not a positive interval"
    outside = [value for value in thresholds if not 0 <= value <= 1]
    return f"threshold {outside[0]} is not between 0 and 1" if outside else None


_V071 = Rule(
    id="V071",
    fields=(
        "nvrx_straggler.enabled",
        "nvrx_straggler.calc_relative_gpu_perf",
        "nvrx_straggler.calc_individual_gpu_perf",
        "nvrx_straggler.report_time_interval",
        "nvrx_straggler.gpu_relative_perf_threshold",
        "nvrx_straggler.gpu_individual_perf_threshold",
    ),
    test=lambda enabled, relative, individual, interval, *thresholds: _detector_settings_valid(
        enabled, relative, individual, interval, thresholds
    ),
    why="the detector needs at least one kind of score, a positive interval, and thresholds in the range of scores",
    fix="Enable one of the two kinds of score, and set an interval above 0 seconds and thresholds between 0 and 1.",
    fails={
        "nvrx_straggler.enabled": True,
        "nvrx_straggler.calc_relative_gpu_perf": True,
        "nvrx_straggler.calc_individual_gpu_perf": True,
        "nvrx_straggler.report_time_interval": 300.0,
        "nvrx_straggler.gpu_relative_perf_threshold": 1.5,
        "nvrx_straggler.gpu_individual_perf_threshold": 0.7,
    },
    passes={
        "nvrx_straggler.enabled": True,
        "nvrx_straggler.calc_relative_gpu_perf": False,
        "nvrx_straggler.calc_individual_gpu_perf": True,
        "nvrx_straggler.report_time_interval": 300.0,
        "nvrx_straggler.gpu_relative_perf_threshold": 0.7,
        "nvrx_straggler.gpu_individual_perf_threshold": 0.7,
    },
)


def _no_effect(settings: list[str]) -> str | None:
    return f"{', '.join(settings)} {'has' if len(settings) == 1 else 'have'} no effect" if settings else None


def _nvrx_installed(requested: bool, installed: bool) -> str | None:
    return "nvidia-resiliency-ext is not installed" if requested and not installed else None


def _older_than_supported(version: str) -> str | None:
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is None or (int(numbers[1]), int(numbers[2])) >= MIN_NVRX_VERSION:
        return None
    return f"nvidia-resiliency-ext {version} is installed"


def _requires_nvrx_version(rule_id: str, switch: str) -> Rule:
    """Return a rule that rejects an nvidia-resiliency-ext that is too old for an enabled feature."""
    version = "facts.nvidia_resiliency_ext_version"
    return Rule(
        id=rule_id,
        fields=(switch, version),
        test=lambda on, installed: _older_than_supported(installed) if on else None,
        why="the functions that this package calls exist since version 0.3",
        fix=f"Install mb-resilience[nvrx], or set {switch}=false.",
        fails={switch: True, version: "0.2.1"},
        passes={switch: True, version: "0.3.0"},
    )


def _unused_while_disabled(rule_id: str, section: str, kind: type, *, switch: str) -> Rule:
    """Return a rule that warns about fields of a disabled feature."""
    path = f"{section}.{switch}"
    defaults = {f"{section}.{field.name}": field.default for field in fields(kind) if field.name != switch}

    def test(on: object, *values: object) -> str | None:
        changed = [
            f"{name.split('.')[1]}={value!r}"
            for (name, default), value in zip(defaults.items(), values, strict=True)
            if value != default and not on
        ]
        return _no_effect(changed)

    first = next(iter(defaults))
    return Rule(
        id=rule_id,
        fields=(path, *defaults),
        test=test,
        why=f"{path}=false disables the section",
        fix=f"Set {path}=true, or remove these fields.",
        severity="warning",
        fails={path: False, **defaults, first: "something else"},
        passes={path: True, **defaults, first: "something else"},
    )


def _timer_settings_valid(on: bool, opened: bool, port: int, count: int) -> str | None:
    if on and opened and not 1 <= port <= 65535:
        return f"straggler_ctrlr_port={port} is not a valid port"
    return f"straggler_minmax_count={count} is not a positive number of ranks" if on and count < 1 else None


_R31 = Rule(
    id="R31",
    fields=(
        "straggler.log_straggler",
        "straggler.straggler_ctrlr",
        "straggler.straggler_ctrlr_port",
        "straggler.straggler_minmax_count",
    ),
    test=_timer_settings_valid,
    why="rank 0 listens on the port, and each report lists at least the slowest and the fastest rank",
    fix="Set a port between 1 and 65535 that is free on the machine of rank 0, and at least 1 rank.",
    fails={
        "straggler.log_straggler": True,
        "straggler.straggler_ctrlr": True,
        "straggler.straggler_ctrlr_port": 70000,
        "straggler.straggler_minmax_count": 1,
    },
    passes={
        "straggler.log_straggler": True,
        "straggler.straggler_ctrlr": True,
        "straggler.straggler_ctrlr_port": 65535,
        "straggler.straggler_minmax_count": 1,
    },
)


def _port_settings_used(on: bool, opened: bool, *values: object) -> str | None:
    names = ("straggler_ctrlr_port", "straggler_ctrlr_host")
    changed = [
        f"{name}={value!r}"
        for name, value in zip(names, values, strict=True)
        if value != getattr(StragglerDetectionConfig, name)
    ]
    return f"{_no_effect(changed)} while straggler_ctrlr=false" if on and not opened and changed else None


def _timer_can_start(on: bool, opened: bool, enabled: bool, disabled: bool) -> str | None:
    if not on or opened or (enabled and not disabled):
        return None
    return "the timer starts paused, and straggler_ctrlr=false leaves no way to resume it"


_R36 = Rule(
    id="R36",
    fields=(
        "straggler.log_straggler",
        "straggler.straggler_ctrlr",
        "straggler.straggler_ctrlr_port",
        "straggler.straggler_ctrlr_host",
    ),
    test=_port_settings_used,
    why="rank 0 listens for requests only if straggler_ctrlr is set",
    fix="Set straggler.straggler_ctrlr=true, or remove the port and the address.",
    fails={
        "straggler.log_straggler": True,
        "straggler.straggler_ctrlr": False,
        "straggler.straggler_ctrlr_port": 7000,
        "straggler.straggler_ctrlr_host": "127.0.0.1",
    },
    passes={
        "straggler.log_straggler": True,
        "straggler.straggler_ctrlr": True,
        "straggler.straggler_ctrlr_port": 7000,
        "straggler.straggler_ctrlr_host": "127.0.0.1",
    },
)

_R37 = Rule(
    id="R37",
    fields=(
        "straggler.log_straggler",
        "straggler.straggler_ctrlr",
        "straggler.enable_straggler_on_startup",
        "straggler.disable_straggler_on_startup",
    ),
    test=_timer_can_start,
    why="only a request to rank 0 resumes a paused timer",
    fix="Set straggler.straggler_ctrlr=true, or start with the timer on.",
    fails={
        "straggler.log_straggler": True,
        "straggler.straggler_ctrlr": False,
        "straggler.enable_straggler_on_startup": False,
        "straggler.disable_straggler_on_startup": False,
    },
    passes={
        "straggler.log_straggler": True,
        "straggler.straggler_ctrlr": True,
        "straggler.enable_straggler_on_startup": False,
        "straggler.disable_straggler_on_startup": False,
    },
)


_DETECTOR_RULES = (
    Rule(
        id="R32",
        fields=("nvrx_straggler.enabled", "facts.nvidia_resiliency_ext_installed"),
        test=_nvrx_installed,
        why="its detector measures the kernels of each GPU",
        fix="Install it, or set nvrx_straggler.enabled=false; straggler.log_straggler=true does not need it.",
        fails={"nvrx_straggler.enabled": True, "facts.nvidia_resiliency_ext_installed": False},
        passes={"nvrx_straggler.enabled": True, "facts.nvidia_resiliency_ext_installed": True},
    ),
    Rule(
        id="R33",
        fields=("nvrx_straggler.enabled", "facts.cpu"),
        test=lambda enabled, cpu: "no GPU is available" if enabled and cpu else None,
        why="the detector measures GPU kernels only",
        fix="Set nvrx_straggler.enabled=false, and straggler.log_straggler=true, which times any device.",
        severity="warning",
        fails={"nvrx_straggler.enabled": True, "facts.cpu": True},
        passes={"nvrx_straggler.enabled": True, "facts.cpu": False},
    ),
    Rule(
        id="R34",
        fields=(
            "nvrx_straggler.enabled",
            "nvrx_straggler.profiling_interval",
            "nvrx_straggler.num_gpu_perf_scores_to_print",
        ),
        test=lambda enabled, interval, count: (
            f"profiling_interval={interval}, num_gpu_perf_scores_to_print={count}"
            if enabled and (interval < 1 or count < 0)
            else None
        ),
        why="every n-th step is measured, and the number of printed scores is not negative",
        fix="Set profiling_interval to at least 1, and num_gpu_perf_scores_to_print to at least 0.",
        fails={
            "nvrx_straggler.enabled": True,
            "nvrx_straggler.profiling_interval": 0,
            "nvrx_straggler.num_gpu_perf_scores_to_print": 5,
        },
        passes={
            "nvrx_straggler.enabled": True,
            "nvrx_straggler.profiling_interval": 1,
            "nvrx_straggler.num_gpu_perf_scores_to_print": 0,
        },
    ),
)


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

_RESTART = {
    f"inprocess_restart.{field.name}": field.default
    for field in fields(InProcessRestartConfig)
    if field.name.endswith(("_interval", "_timeout")) or field.name in ("enabled", *_COUNTS)
}


def _restart_settings_valid(*values: Any) -> str | None:
    """Return a setting that NVRx's wrapper rejects: times in the wrong order, or a count below its minimum."""
    given = {path.split(".")[1]: value for path, value in zip(_RESTART, values, strict=True)}
    if not given["enabled"]:
        return None
    for name, least in _COUNTS.items():
        if given[name] is not None and given[name] < least:
            return f"{name}={given[name]} is below {least}"
    for shorter, longer in _ORDERED_TIMES:
        if not 0 < given[shorter] < given[longer]:
            return f"{shorter}={given[shorter]} is not between 0 and {longer}={given[longer]}"
    return None


_R35 = Rule(
    id="R35",
    fields=tuple(_RESTART),
    test=_restart_settings_valid,
    why="a polling interval must be shorter than its time-out, and the barrier of a restart must outlast all time-outs",
    fix="Set intervals below their time-outs, and soft_timeout < hard_timeout < barrier_timeout.",
    fails={**_RESTART, "inprocess_restart.enabled": True, "inprocess_restart.soft_timeout": 100.0},
    passes={**_RESTART, "inprocess_restart.enabled": True},
)


def _has_loss_check(mode: str, finite: bool, spiky: bool) -> str | None:
    if mode == "disabled" or finite or spiky:
        return None
    return f"rerun_mode={mode} with check_for_nan_in_loss=false and check_for_spiky_loss=false"


def _injection_valid(rate: int, mode: str) -> str | None:
    if rate < 0:
        return f"error_injection_rate={rate} is not a valid number of checks"
    return f"error_injection_rate={rate} with rerun_mode=disabled" if rate and mode == "disabled" else None


def _unused_rerun_settings(factor: float, spiky: bool, kind: str, rate: int) -> str | None:
    default = RerunStateMachineConfig()
    idle = [
        text
        for text, is_idle in (
            (f"spiky_loss_factor={factor}", not spiky and factor != default.spiky_loss_factor),
            (f"error_injection_type={kind}", not rate and kind != default.error_injection_type),
        )
        if is_idle
    ]
    return _no_effect(idle)


def _fault_valid(requested: bool, rank: int | None, delay: float, world_size: int) -> str | None:
    if not requested:
        return None
    if rank is not None and not 0 <= rank < world_size:
        return f"simulated_fault_rank={rank} is outside of the world size {world_size}"
    return f"simulated_fault_base_delay={delay} is negative" if delay < 0 else None


def _unused_fault_settings(
    enabled: bool, calculates: bool, simulates: bool, kind: str, rank: int | None, delay: int
) -> str | None:
    """Return the settings of disabled features."""
    default = FaultToleranceConfig()
    idle = {
        "calc_ft_timeouts": (calculates, not enabled and calculates),
        "simulated_fault_type": (kind, not simulates and kind != default.simulated_fault_type),
        "simulated_fault_rank": (rank, not simulates and rank is not None),
        "simulated_fault_base_delay": (delay, not simulates and delay != default.simulated_fault_base_delay),
    }
    changed = [f"{name}={value!r}" for name, (value, is_idle) in idle.items() if is_idle]
    return _no_effect(changed)


_FAULT_RULES = (
    Rule(
        id="R21",
        fields=("ft.enable_ft_package", "facts.nvidia_resiliency_ext_installed"),
        test=_nvrx_installed,
        why="its launcher monitors the ranks, and kills those that hang",
        fix="Install nvidia-resiliency-ext and start the job with ft_launcher, or set ft.enable_ft_package=false.",
        fails={"ft.enable_ft_package": True, "facts.nvidia_resiliency_ext_installed": False},
        passes={"ft.enable_ft_package": True, "facts.nvidia_resiliency_ext_installed": True},
    ),
    Rule(
        id="R22",
        fields=(
            "ft.simulate_fault",
            "ft.simulated_fault_rank",
            "ft.simulated_fault_base_delay",
            "facts.world_size",
        ),
        test=_fault_valid,
        why="the fault needs an existing rank and a delay after the start",
        fix="Set an existing rank or null, and a delay of at least 0 seconds.",
        fails={
            "ft.simulate_fault": True,
            "ft.simulated_fault_rank": 2,
            "ft.simulated_fault_base_delay": 0,
            "facts.world_size": 2,
        },
        passes={
            "ft.simulate_fault": True,
            "ft.simulated_fault_rank": 1,
            "ft.simulated_fault_base_delay": 0,
            "facts.world_size": 2,
        },
    ),
    Rule(
        id="R23",
        fields=tuple(f"ft.{field.name}" for field in fields(FaultToleranceConfig)),
        test=_unused_fault_settings,
        why="the feature is disabled",
        fix="Set ft.enable_ft_package=true for time-outs, ft.simulate_fault=true for a fault; or remove these fields.",
        severity="warning",
        fails={
            **{f"ft.{field.name}": field.default for field in fields(FaultToleranceConfig)},
            "ft.calc_ft_timeouts": True,
        },
        passes={
            **{f"ft.{field.name}": field.default for field in fields(FaultToleranceConfig)},
            "ft.enable_ft_package": True,
            "ft.calc_ft_timeouts": True,
        },
    ),
)


_RERUN_RULES = (
    Rule(
        id="R06",
        fields=(
            "rerun_state_machine.rerun_mode",
            "rerun_state_machine.check_for_nan_in_loss",
            "rerun_state_machine.check_for_spiky_loss",
        ),
        test=_has_loss_check,
        why="a step is rerun if a check rejects its loss, and no check is enabled",
        fix="Set rerun_state_machine.check_for_nan_in_loss=true, or rerun_state_machine.rerun_mode=disabled.",
        fails={
            "rerun_state_machine.rerun_mode": "validate_results",
            "rerun_state_machine.check_for_nan_in_loss": False,
            "rerun_state_machine.check_for_spiky_loss": False,
        },
        passes={
            "rerun_state_machine.rerun_mode": "validate_results",
            "rerun_state_machine.check_for_nan_in_loss": True,
            "rerun_state_machine.check_for_spiky_loss": False,
        },
    ),
    Rule(
        id="R07",
        fields=("rerun_state_machine.spiky_loss_factor",),
        test=lambda factor: None if factor > 1 else f"spiky_loss_factor={factor} is not above 1",
        why="a loss is suspicious at this multiple of the largest of the first hundred losses, which are normal",
        fix="Set it above 1, such as 10.",
        fails={"rerun_state_machine.spiky_loss_factor": 0.5},
        passes={"rerun_state_machine.spiky_loss_factor": 10.0},
    ),
    Rule(
        id="R08",
        fields=("rerun_state_machine.error_injection_rate", "rerun_state_machine.rerun_mode"),
        test=_injection_valid,
        why="injected results test the state machine, which injects none while it is disabled",
        fix="Set rerun_state_machine.rerun_mode=validate_results, or the rate to 0.",
        fails={
            "rerun_state_machine.error_injection_rate": 1000,
            "rerun_state_machine.rerun_mode": "disabled",
        },
        passes={
            "rerun_state_machine.error_injection_rate": 1000,
            "rerun_state_machine.rerun_mode": "validate_results",
        },
    ),
    Rule(
        id="R15",
        fields=(
            "rerun_state_machine.spiky_loss_factor",
            "rerun_state_machine.check_for_spiky_loss",
            "rerun_state_machine.error_injection_type",
            "rerun_state_machine.error_injection_rate",
        ),
        test=_unused_rerun_settings,
        why="the feature is disabled",
        fix="Set check_for_spiky_loss=true, or an error_injection_rate above 0; or remove these fields.",
        severity="warning",
        fails={
            "rerun_state_machine.spiky_loss_factor": 5.0,
            "rerun_state_machine.check_for_spiky_loss": False,
            "rerun_state_machine.error_injection_type": "transient_error",
            "rerun_state_machine.error_injection_rate": 0,
        },
        passes={
            "rerun_state_machine.spiky_loss_factor": 5.0,
            "rerun_state_machine.check_for_spiky_loss": True,
            "rerun_state_machine.error_injection_type": "transient_error",
            "rerun_state_machine.error_injection_rate": 0,
        },
    ),
)


PATH_FIELDS = ("inprocess_restart.monitor_process_logdir",)
"""Fields that hold paths of files or folders."""

_PATHS = tuple(Rule(**path_rule(number, path)) for number, path in enumerate(PATH_FIELDS, start=71))

RULES: tuple[Rule, ...] = (
    *_PATHS,
    _V071,
    *_FAULT_RULES,
    _unused_while_disabled("R12", "straggler", StragglerDetectionConfig, switch="log_straggler"),
    _R31,
    _R36,
    _R37,
    _unused_while_disabled("R13", "nvrx_straggler", NVRxStragglerDetectionConfig, switch="enabled"),
    *_DETECTOR_RULES,
    _unused_while_disabled("R14", "inprocess_restart", InProcessRestartConfig, switch="enabled"),
    _R35,
    *_RERUN_RULES,
    _requires_nvrx_version("R40", "ft.enable_ft_package"),
    _requires_nvrx_version("R41", "nvrx_straggler.enabled"),
)
"""All rules of this package. A rule does not apply if its section is missing."""


class SectionError(ValueError):
    """A section violates rules; the message has one line per rule."""


def check_section(values: object, *, section: str) -> None:
    """Check a section by the rules of severity "error" that read no other section.

    Raises:
        SectionError: rules are violated; one line *path: problem [id]; reason. Fix.* per rule.
        FieldTypeError: values have a wrong type.
    """
    reject_wrong_types(values, path=section)
    lines = []
    for rule in RULES:
        owners = {path.partition(".")[0] for path in rule.fields}
        if owners != {section} or rule.severity != "error":
            continue
        problem = rule.test(*(getattr(values, path.partition(".")[2]) for path in rule.fields))
        if problem is not None:
            lines.append(f"{rule.fields[0]}: {problem} [{rule.id}]; {rule.why}. {rule.fix}")
    if lines:
        raise SectionError("\n".join(lines))
