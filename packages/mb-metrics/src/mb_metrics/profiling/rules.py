"""Rules for `ProfilingConfig` and `TensorInspectConfig`."""

from functools import partial
from pathlib import PurePath

from mb_schema.rule_kinds import (
    excludes,
    in_range,
    needs_package,
    no_effect,
    requires,
    section_rule,
)
from mb_schema.rules import Rule, rules_in

profiling_rule = partial(section_rule, "profiling")

_START, _END = "profiling.profile_step_start", "profiling.profile_step_end"
_TORCH, _NSYS = "profiling.use_pytorch_profiler", "profiling.use_nsys_profiler"
_CHAKRA, _SHAPES, _STACKS = (
    f"profiling.pytorch_profiler_collect_{what}" for what in ("chakra", "shapes", "callstack")
)
_INSPECT = "tensor_inspect.enabled"


@profiling_rule(
    "V070d",
    why="the start of a window precedes its end",
    fix="Swap the two.",
    fails={"profile_step_start": 12, "profile_step_end": 10},
    passes={"profile_step_start": 10, "profile_step_end": 12},
)
def _window_ends_before_start(profile_step_start, profile_step_end):
    if profile_step_end < profile_step_start:
        return (
            f"the window ends before it starts (profile_step_start={profile_step_start}, "
            f"profile_step_end={profile_step_end})"
        )
    return None


@profiling_rule(
    "V070e",
    why="no step would be profiled",
    fix="Set profiling.profile_step_end at least one higher.",
    fails={"profile_step_start": 10, "profile_step_end": 10, "use_pytorch_profiler": True},
    passes={"profile_step_end": 11},
)
def _window_empty(
    profile_step_start, profile_step_end, use_pytorch_profiler, use_nsys_profiler, record_memory_history
):
    requested = use_pytorch_profiler or use_nsys_profiler or record_memory_history
    if requested and profile_step_start == profile_step_end:
        return f"the window is empty (profile_step_start={profile_step_start}, profile_step_end={profile_step_end})"
    return None


@profiling_rule(
    "V070f",
    why="no step would be profiled",
    fix="Set profiling.profile_step_start lower than train.train_iters.",
    fails={"profile_step_start": 10, "train__train_iters": 10, "use_pytorch_profiler": True},
    passes={"train__train_iters": 11},
    severity="warning",
)
def _window_after_end_of_run(
    profile_step_start, train__train_iters, use_pytorch_profiler, use_nsys_profiler, record_memory_history
):
    if (
        train__train_iters is None
        or profile_step_start < train__train_iters
        or not (use_pytorch_profiler or use_nsys_profiler or record_memory_history)
    ):
        return None
    return (
        f"the run ends before that step (profile_step_start={profile_step_start}, "
        f"train.train_iters={train__train_iters})"
    )


@profiling_rule(
    "L60",
    why="ranks are counted from 0, and nothing would be profiled",
    fix="List ranks of the run, or no rank to profile all of them.",
    fails={"profile_ranks": [-1]},
    passes={"profile_ranks": [0, 8]},
)
def _negative_rank(profile_ranks):
    if any(rank < 0 for rank in profile_ranks):
        return f"contains a negative rank (profile_ranks={profile_ranks})"
    return None


@profiling_rule(
    "L62",
    why="the memory history is written to one file per rank",
    fix="Set the path of a file, such as snapshot.pickle.",
    fails={"record_memory_history": True, "memory_snapshot_path": ""},
    passes={"memory_snapshot_path": "snapshot.pickle"},
)
def _no_file_name(record_memory_history, memory_snapshot_path):
    if record_memory_history and not PurePath(memory_snapshot_path).name:
        return f"requires a file name (memory_snapshot_path={memory_snapshot_path!r})"
    return None


PROFILING_RULES: tuple[Rule, ...] = (
    excludes(
        "V070",
        {_TORCH: True, _NSYS: True},
        why="both use the GPU's only tracing interface",
        fix="Choose one of them.",
    ),
    *(
        in_range(id, path, 0, why="steps are counted from 0", fix="Set it to 0 or more.")
        for id, path in (("V070b", _START), ("V070c", _END))
    ),
    *rules_in(globals()),
    no_effect(
        "L61",
        _TORCH,
        dict.fromkeys((_CHAKRA, _SHAPES, _STACKS), False),
        why="they are options of torch.profiler's trace",
        fix=f"Set {_TORCH}=true, or disable them.",
        fails={_CHAKRA: True},
    ),
    requires(
        "V072",
        {_INSPECT: True, "tensor_inspect.feature_dirs": True},
        {"tensor_inspect.allow_custom_feature_dirs": True},
        why="feature_dirs would be executed as code, and a configuration from an untrusted source must not execute"
        " arbitrary code",
        fix="Review the files, and set tensor_inspect.allow_custom_feature_dirs=true.",
        fails={"tensor_inspect.feature_dirs": ["features"]},
    ),
    requires(
        "L63",
        {_INSPECT: True},
        {"tensor_inspect.features": True},
        why="the tool would start and log nothing",
        fix="Set tensor_inspect.features to the tool's settings or to the path of a YAML file that contains them.",
        passes={"tensor_inspect.features": "features.yaml"},
    ),
    needs_package(
        "L64",
        [_INSPECT],
        "nvdlfw-inspect",
        fact="nvdlfw_inspect_installed",
        why="nvdlfw-inspect computes the statistics",
        fix="Install nvdlfw-inspect, or set tensor_inspect.enabled=false.",
    ),
)
