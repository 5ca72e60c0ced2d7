"""Rules on the section `nvrx_straggler`. Standard library only."""

from functools import partial

from mb_resilience.rule_kinds import requires_nvrx, requires_nvrx_version
from mb_schema.rule_kinds import section_rule
from mb_schema.rules import Rule, rules_in

nvrx_straggler_rule = partial(section_rule, "nvrx_straggler")


@nvrx_straggler_rule(
    "V071",
    why="the detector needs at least one kind of score, a positive interval, and thresholds in the range of scores",
    fix="Enable one of the two kinds of score, and set an interval above 0 seconds and thresholds between 0 and 1.",
    fails={
        "enabled": True,
        "calc_relative_gpu_perf": True,
        "report_time_interval": 300.0,
        "gpu_relative_perf_threshold": 1.5,
        "gpu_individual_perf_threshold": 0.7,
    },
    passes={"gpu_relative_perf_threshold": 0.7},
)
def invalid_detector_settings(
    enabled,
    calc_relative_gpu_perf,
    calc_individual_gpu_perf,
    report_time_interval,
    gpu_relative_perf_threshold,
    gpu_individual_perf_threshold,
):
    """Reject settings of an enabled detector, also in `NVRxStragglerDetectionConfig.finalize`."""
    if not enabled:
        return None
    if not (calc_relative_gpu_perf or calc_individual_gpu_perf):
        return "calc_relative_gpu_perf=false and calc_individual_gpu_perf=false leave no score to calculate"
    if not report_time_interval > 0:  # also not a number
        return f"report_time_interval={report_time_interval} is not a positive interval"
    for threshold in (gpu_relative_perf_threshold, gpu_individual_perf_threshold):
        if not 0 <= threshold <= 1:
            return f"threshold {threshold} is not between 0 and 1"
    return None


@nvrx_straggler_rule(
    "R33",
    why="the detector measures GPU kernels only",
    fix="Set nvrx_straggler.enabled=false, and straggler.log_straggler=true, which times any device.",
    fails={"enabled": True, "cpu": True},
    passes={"cpu": False},
    severity="warning",
)
def _no_gpu(enabled, *, cpu):
    return "no GPU is available" if enabled and cpu else None


@nvrx_straggler_rule(
    "R34",
    why="every n-th step is measured, and the number of printed scores is not negative",
    fix="Set profiling_interval to at least 1, and num_gpu_perf_scores_to_print to at least 0.",
    fails={"enabled": True, "profiling_interval": 0, "num_gpu_perf_scores_to_print": 5},
    passes={"profiling_interval": 1, "num_gpu_perf_scores_to_print": 0},
)
def _invalid_numbers(enabled, profiling_interval, num_gpu_perf_scores_to_print):
    if not enabled or (profiling_interval >= 1 and num_gpu_perf_scores_to_print >= 0):
        return None
    return f"profiling_interval={profiling_interval}, num_gpu_perf_scores_to_print={num_gpu_perf_scores_to_print}"


RULES: tuple[Rule, ...] = (
    *rules_in(globals()),
    requires_nvrx(
        "R32",
        "nvrx_straggler.enabled",
        why="its detector measures the kernels of each GPU",
        fix="Install it, or set nvrx_straggler.enabled=false; straggler.log_straggler=true does not need it.",
    ),
    requires_nvrx_version("R41", "nvrx_straggler.enabled"),
)
"""Rules without R13, which reads the defaults of the section: the section itself applies the first one."""
