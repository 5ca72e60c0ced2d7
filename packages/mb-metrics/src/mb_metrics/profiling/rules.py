"""Rules for `ProfilingConfig` and `TensorInspectConfig`."""

from pathlib import PurePath

from mb_schema.rule_kinds import as_warning, excludes, in_range, needs_package, no_effect, requires, rule
from mb_schema.rules import Rule

_START, _END = "profiling.profile_step_start", "profiling.profile_step_end"
_TORCH, _NSYS = "profiling.use_pytorch_profiler", "profiling.use_nsys_profiler"
_HISTORY = "profiling.record_memory_history"
_CHAKRA, _SHAPES, _STACKS = (
    f"profiling.pytorch_profiler_collect_{what}" for what in ("chakra", "shapes", "callstack")
)
_INSPECT = "tensor_inspect.enabled"


def _ordered(start: int, end: int) -> str | None:
    if end < start:
        return f"the window ends before it starts (profile_step_start={start}, profile_step_end={end})"
    return None


def _empty(start: int, end: int, torch: bool, nsys: bool, history: bool) -> str | None:
    requested = torch or nsys or history
    if requested and start == end:
        return f"the window is empty (profile_step_start={start}, profile_step_end={end})"
    return None


def _never(start: int, steps: int | None, torch: bool, nsys: bool, history: bool) -> str | None:
    if steps is None or start < steps or not (torch or nsys or history):
        return None
    return f"the run ends before that step (profile_step_start={start}, train.train_iters={steps})"


def _ranks(ranks: list[int]) -> str | None:
    return f"contains a negative rank (profile_ranks={ranks})" if any(rank < 0 for rank in ranks) else None


def _no_file_name(history: bool, path: str) -> str | None:
    if history and not PurePath(path).name:
        return f"requires a file name (memory_snapshot_path={path!r})"
    return None


PROFILING_RULES: tuple[Rule, ...] = (
    excludes(
        "V070",
        {_TORCH: True, _NSYS: True},
        why="both use the GPU's only tracing interface",
        fix="Choose one of them.",
        fails=(True, True),
        passes=(True, False),
    ),
    *(
        in_range(id, path, 0, why="steps are counted from 0", fix="Set it to 0 or more.")
        for id, path in (("V070b", _START), ("V070c", _END))
    ),
    rule(
        "V070d",
        (_START, _END),
        _ordered,
        why="the start of a window precedes its end",
        fix="Swap the two.",
        fails=(12, 10),
        passes=(10, 12),
    ),
    rule(
        "V070e",
        (_START, _END, _TORCH, _NSYS, _HISTORY),
        _empty,
        why="no step would be profiled",
        fix="Set profiling.profile_step_end at least one higher.",
        fails=(10, 10, True, False, False),
        passes=(10, 11, True, False, False),
    ),
    as_warning(
        rule(
            "V070f",
            (_START, "train.train_iters", _TORCH, _NSYS, _HISTORY),
            _never,
            why="no step would be profiled",
            fix="Set profiling.profile_step_start lower than train.train_iters.",
            fails=(10, 10, True, False, False),
            passes=(10, 11, True, False, False),
        )
    ),
    rule(
        "L60",
        "profiling.profile_ranks",
        _ranks,
        why="ranks are counted from 0, and nothing would be profiled",
        fix="List ranks of the run, or no rank to profile all of them.",
        fails=([-1],),
        passes=([0, 8],),
    ),
    no_effect(
        "L61",
        _TORCH,
        dict.fromkeys((_CHAKRA, _SHAPES, _STACKS), False),
        why="they are options of torch.profiler's trace",
        fix=f"Set {_TORCH}=true, or disable them.",
        fails=(False, True, False, False),
        passes=(True, True, False, False),
    ),
    rule(
        "L62",
        (_HISTORY, "profiling.memory_snapshot_path"),
        _no_file_name,
        why="the memory history is written to one file per rank",
        fix="Set the path of a file, such as snapshot.pickle.",
        fails=(True, ""),
        passes=(True, "snapshot.pickle"),
    ),
    requires(
        "V072",
        {_INSPECT: True, "tensor_inspect.feature_dirs": True},
        {"tensor_inspect.allow_custom_feature_dirs": True},
        why="feature_dirs would be executed as code, and a configuration from an untrusted source must not execute"
        " arbitrary code",
        fix="Review the files, and set tensor_inspect.allow_custom_feature_dirs=true.",
        fails=(True, ["features"], False),
        passes=(True, ["features"], True),
    ),
    requires(
        "L63",
        {_INSPECT: True},
        {"tensor_inspect.features": True},
        why="the tool would start and log nothing",
        fix="Set tensor_inspect.features to the tool's settings or to the path of a YAML file that contains them.",
        fails=(True, None),
        passes=(True, "features.yaml"),
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
