"""Rules for `ProfilingConfig` and `TensorInspectConfig`."""

from collections.abc import Callable
from pathlib import PurePath

from mb_metrics.rule import Rule

_START, _END = "profiling.profile_step_start", "profiling.profile_step_end"
_TORCH, _NSYS = "profiling.use_pytorch_profiler", "profiling.use_nsys_profiler"
_HISTORY = "profiling.record_memory_history"
_CHAKRA, _SHAPES, _STACKS = (
    f"profiling.pytorch_profiler_collect_{what}" for what in ("chakra", "shapes", "callstack")
)
_INSPECT = "tensor_inspect.enabled"


def _both(torch: bool, nsys: bool) -> str | None:
    return "both profilers are enabled" if torch and nsys else None


def _not_negative(name: str) -> Callable[[int], str | None]:
    return lambda step: f"{name}={step} is negative" if step < 0 else None


def _ordered(start: int, end: int) -> str | None:
    return (
        f"the window ends (profile_step_end={end}) before it starts (profile_step_start={start})"
        if end < start
        else None
    )


def _empty(start: int, end: int, torch: bool, nsys: bool, history: bool) -> str | None:
    requested = torch or nsys or history
    return (
        f"the window is empty (profile_step_start = profile_step_end = {end})"
        if requested and start == end
        else None
    )


def _never(start: int, steps: int | None, torch: bool, nsys: bool, history: bool) -> str | None:
    if steps is None or start < steps or not (torch or nsys or history):
        return None
    return f"the run ends after {steps} steps, and profile_step_start={start}"


def _ranks(ranks: list[int]) -> str | None:
    return f"profile_ranks={ranks} has a negative rank" if any(rank < 0 for rank in ranks) else None


def _without_trace(torch: bool, *details: bool) -> str | None:
    return "details of the trace are set, but no trace is written" if any(details) and not torch else None


def _no_file_name(history: bool, path: str) -> str | None:
    return f"memory_snapshot_path={path!r} has no file name" if history and not PurePath(path).name else None


def _dirs_not_allowed(enabled: bool, dirs: list[str] | None, allowed: bool) -> str | None:
    return (
        f"feature_dirs={dirs} would be executed as code, and custom feature folders are not allowed"
        if enabled and dirs and not allowed
        else None
    )


def _no_features(enabled: bool, features: object) -> str | None:
    return "no features are set" if enabled and not features else None


def _not_installed(enabled: bool, installed: bool) -> str | None:
    return (
        "tensor inspection is enabled and nvdlfw-inspect is not installed"
        if enabled and not installed
        else None
    )


PROFILING_RULES: tuple[Rule, ...] = (
    Rule(
        id="V070",
        fields=(_TORCH, _NSYS),
        test=_both,
        why="both use the GPU's only tracing interface",
        fix="Choose one of them.",
        fails={_TORCH: True, _NSYS: True},
        passes={_TORCH: True, _NSYS: False},
    ),
    *(
        Rule(
            id=id,
            fields=(path,),
            test=_not_negative(path.rpartition(".")[2]),
            why="steps are counted from 0",
            fix="Set it to 0 or more.",
            fails={path: -1},
            passes={path: 0},
        )
        for id, path in (("V070b", _START), ("V070c", _END))
    ),
    Rule(
        id="V070d",
        fields=(_START, _END),
        test=_ordered,
        why="the start of a window precedes its end",
        fix="Swap the two.",
        fails={_START: 12, _END: 10},
        passes={_START: 10, _END: 12},
    ),
    Rule(
        id="V070e",
        fields=(_START, _END, _TORCH, _NSYS, _HISTORY),
        test=_empty,
        why="no step would be profiled",
        fix="Set profiling.profile_step_end at least one higher.",
        fails={_START: 10, _END: 10, _TORCH: True, _NSYS: False, _HISTORY: False},
        passes={_START: 10, _END: 11, _TORCH: True, _NSYS: False, _HISTORY: False},
    ),
    Rule(
        id="V070f",
        fields=(_START, "train.train_iters", _TORCH, _NSYS, _HISTORY),
        test=_never,
        why="no step would be profiled",
        fix="Set profiling.profile_step_start lower than train.train_iters.",
        severity="warning",
        fails={_START: 10, "train.train_iters": 10, _TORCH: True, _NSYS: False, _HISTORY: False},
        passes={_START: 10, "train.train_iters": 11, _TORCH: True, _NSYS: False, _HISTORY: False},
    ),
    Rule(
        id="L60",
        fields=("profiling.profile_ranks",),
        test=_ranks,
        why="ranks are counted from 0, and nothing would be profiled",
        fix="List ranks of the run, or no rank to profile all of them.",
        fails={"profiling.profile_ranks": [-1]},
        passes={"profiling.profile_ranks": [0, 8]},
    ),
    Rule(
        id="L61",
        fields=(_TORCH, _CHAKRA, _SHAPES, _STACKS),
        test=_without_trace,
        why="they are options of torch.profiler's trace",
        fix=f"Set {_TORCH}=true, or disable them.",
        fails={_TORCH: False, _CHAKRA: True, _SHAPES: False, _STACKS: False},
        passes={_TORCH: True, _CHAKRA: True, _SHAPES: False, _STACKS: False},
    ),
    Rule(
        id="L62",
        fields=(_HISTORY, "profiling.memory_snapshot_path"),
        test=_no_file_name,
        why="the memory history is written to one file per rank",
        fix="Set the path of a file, such as snapshot.pickle.",
        fails={_HISTORY: True, "profiling.memory_snapshot_path": ""},
        passes={_HISTORY: True, "profiling.memory_snapshot_path": "snapshot.pickle"},
    ),
    Rule(
        id="V072",
        fields=(_INSPECT, "tensor_inspect.feature_dirs", "tensor_inspect.allow_custom_feature_dirs"),
        test=_dirs_not_allowed,
        why="a configuration from an untrusted source must not execute arbitrary code",
        fix="Review the files, and set tensor_inspect.allow_custom_feature_dirs=true.",
        fails={
            _INSPECT: True,
            "tensor_inspect.feature_dirs": ["features"],
            "tensor_inspect.allow_custom_feature_dirs": False,
        },
        passes={
            _INSPECT: True,
            "tensor_inspect.feature_dirs": ["features"],
            "tensor_inspect.allow_custom_feature_dirs": True,
        },
    ),
    Rule(
        id="L63",
        fields=(_INSPECT, "tensor_inspect.features"),
        test=_no_features,
        why="the tool would start and log nothing",
        fix="Set tensor_inspect.features to the tool's settings or to the path of a YAML file that contains them.",
        fails={_INSPECT: True, "tensor_inspect.features": None},
        passes={_INSPECT: True, "tensor_inspect.features": "features.yaml"},
    ),
    Rule(
        id="L64",
        fields=(_INSPECT, "facts.nvdlfw_inspect_installed"),
        test=_not_installed,
        why="nvdlfw-inspect computes the statistics",
        fix="Install nvdlfw-inspect, or set tensor_inspect.enabled=false.",
        fails={_INSPECT: True, "facts.nvdlfw_inspect_installed": False},
        passes={_INSPECT: True, "facts.nvdlfw_inspect_installed": True},
    ),
)
