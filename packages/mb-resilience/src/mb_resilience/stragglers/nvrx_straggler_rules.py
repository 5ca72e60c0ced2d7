"""Rules on the section `nvrx_straggler`. Standard library only."""

from functools import partial

from mb_resilience.rule_kinds import Defaults, requires_nvrx, requires_nvrx_version, unused_while_disabled
from mb_schema.rule_kinds import rule, section_rule, within
from mb_schema.rules import Rule

nvrx_straggler_rule = partial(section_rule, "nvrx_straggler")


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


VALID_SETTINGS = rule(
    "V071",
    within(
        "nvrx_straggler",
        "enabled calc_relative_gpu_perf calc_individual_gpu_perf report_time_interval "
        "gpu_relative_perf_threshold gpu_individual_perf_threshold",
    ),
    lambda enabled, relative, individual, interval, *thresholds: _detector_settings_valid(
        enabled, relative, individual, interval, thresholds
    ),
    why="the detector needs at least one kind of score, a positive interval, and thresholds in the range of scores",
    fix="Enable one of the two kinds of score, and set an interval above 0 seconds and thresholds between 0 and 1.",
    fails=(True, True, True, 300.0, 1.5, 0.7),
    passes=(True, False, True, 300.0, 0.7, 0.7),
)
"""Rule on the settings of an enabled detector, which `NVRxStragglerDetectionConfig.finalize` checks as well."""


_RULES = (
    VALID_SETTINGS,
    requires_nvrx(
        "R32",
        "nvrx_straggler.enabled",
        why="its detector measures the kernels of each GPU",
        fix="Install it, or set nvrx_straggler.enabled=false; straggler.log_straggler=true does not need it.",
    ),
    requires_nvrx_version("R41", "nvrx_straggler.enabled"),
    nvrx_straggler_rule(
        "R33",
        why="the detector measures GPU kernels only",
        fix="Set nvrx_straggler.enabled=false, and straggler.log_straggler=true, which times any device.",
        fails={"enabled": True, "cpu": True},
        passes={"cpu": False},
        severity="warning",
    )(lambda enabled, *, cpu: "no GPU is available" if enabled and cpu else None),
    nvrx_straggler_rule(
        "R34",
        why="every n-th step is measured, and the number of printed scores is not negative",
        fix="Set profiling_interval to at least 1, and num_gpu_perf_scores_to_print to at least 0.",
        fails={"enabled": True, "profiling_interval": 0, "num_gpu_perf_scores_to_print": 5},
        passes={"profiling_interval": 1, "num_gpu_perf_scores_to_print": 0},
    )(
        lambda enabled, profiling_interval, num_gpu_perf_scores_to_print: (
            f"profiling_interval={profiling_interval}, num_gpu_perf_scores_to_print={num_gpu_perf_scores_to_print}"
            if enabled and (profiling_interval < 1 or num_gpu_perf_scores_to_print < 0)
            else None
        )
    ),
)


def nvrx_straggler_rules(defaults: Defaults) -> tuple[Rule, ...]:
    """Return the rules on the section."""
    return (*_RULES, unused_while_disabled("R13", defaults, switch="nvrx_straggler.enabled"))
