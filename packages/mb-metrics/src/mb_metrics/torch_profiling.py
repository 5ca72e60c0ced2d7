"""The door to torch's profilers: what `ProfilingConfig` asks for, built."""

import logging
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile, schedule

from mb_metrics.profiling import (
    MemoryRecorder,
    MemorySnapshot,
    NsysRange,
    ProfilingCallback,
    StepProfiler,
    StepRanges,
    is_profiled,
)
from mb_metrics.profiling_config import ProfilingConfig

_logger = logging.getLogger(__name__)

_MAX_ENTRIES = 100_000


class TorchTrace:
    """A Chrome trace of the window: <folder>/torch_profile/rank-<rank>.json.gz; and a Chakra trace beside it.

    One step before the window warms the profiler up, where there is one.
    """

    warmup = 1

    def __init__(self, settings: ProfilingConfig, *, folder: Path, rank: int) -> None:
        self._settings = settings
        self.path = folder / "torch_profile" / f"rank-{rank}.json.gz"
        self.chakra_path = folder / "chakra" / f"rank-{rank}.json.gz"
        self._profile: profile | None = None
        self._observer: ExecutionTraceObserver | None = None

    def begin(self, *, warmup: int, steps: int) -> None:
        """Start the profiler."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        if self._settings.pytorch_profiler_collect_chakra:
            self.chakra_path.parent.mkdir(parents=True, exist_ok=True)
            self._observer = ExecutionTraceObserver().register_callback(str(self.chakra_path))
        self._profile = profile(
            activities=activities,
            schedule=schedule(wait=0, warmup=warmup, active=steps, repeat=1),
            on_trace_ready=lambda finished: finished.export_chrome_trace(str(self.path)),
            record_shapes=self._settings.pytorch_profiler_collect_shapes,
            with_stack=self._settings.pytorch_profiler_collect_callstack,
            execution_trace_observer=self._observer,
        )
        self._profile.start()

    def step_begin(self, step: int) -> None:
        """Do nothing."""

    def step_end(self, step: int) -> None:
        """Tell the profiler; after the window's last step it writes the trace."""
        if self._profile is not None:
            self._profile.step()

    def end(self) -> None:
        """Stop; a window that was cut short is written now."""
        if self._profile is not None:
            self._profile.stop()
            self._profile = None
        if self._observer is not None:
            self._observer.unregister_callback()  # which compresses the file
            self._observer = None


class TorchMemoryRecorder:
    """The recorder of torch's CUDA allocator."""

    def record(self) -> None:
        """Record allocations and frees, the newest 100,000 of them, with their stacks."""
        torch.cuda.memory._record_memory_history(max_entries=_MAX_ENTRIES)

    def write(self, path: Path) -> None:
        """Pickle the snapshot, as https://pytorch.org/memory_viz reads it."""
        with path.open("wb") as file:
            pickle.dump(torch.cuda.memory._snapshot(), file)

    def on_out_of_memory(self, action: Callable[[], None]) -> None:
        """Attach an observer to the allocator."""

        def observe(device: int, allocated: int, total: int, free: int) -> None:
            action()

        torch._C._cuda_attach_out_of_memory_observer(observe)  # type: ignore[attr-defined]


class _HistorySettings(Protocol):
    @property
    def record_memory_history(self) -> bool: ...

    @property
    def memory_snapshot_path(self) -> str: ...

    @property
    def profile_ranks(self) -> list[int]: ...


def start_memory_history_recording(
    profiling: _HistorySettings | None,
    *,
    rank: int | None = None,
    recorder: MemoryRecorder | None = None,
) -> MemorySnapshot | None:
    """Record the GPU's allocations from now on, and write them down when memory runs out.

    Call it before the model is built. Does nothing, and returns None, without a configuration, where the history is
    not asked for, on a rank that is not profiled, and with a warning where there is no GPU. What it returns belongs
    into `ProfilingCallback`, which writes the snapshot when the window ends.

    Args:
        profiling: A `ProfilingConfig`, or what has its fields.
        rank: Of this process; None: that of torch.distributed, or 0.
        recorder: What records; None: torch's allocator.
    """
    own_rank = _own_rank() if rank is None else rank
    if (
        profiling is None
        or not profiling.record_memory_history
        or not is_profiled(profiling.profile_ranks, own_rank)
    ):
        return None
    if recorder is None and not torch.cuda.is_available():
        _logger.warning("profiling.record_memory_history: there is no GPU, so no memory history is recorded")
        return None
    snapshot = MemorySnapshot(
        recorder or TorchMemoryRecorder(), profiling.memory_snapshot_path, rank=own_rank
    )
    snapshot.start()
    return snapshot


def build_profiling(
    settings: ProfilingConfig,
    *,
    folder: str | Path,
    rank: int | None = None,
    memory: MemorySnapshot | None = None,
) -> ProfilingCallback:
    """Return the callback that does what the settings ask for on this rank.

    Nsight Systems and its markers need a GPU: without one they are left out with a warning.

    Args:
        settings: What to profile.
        folder: Where traces go: torch_profile/ and chakra/ in it.
        rank: Of this process; None: that of torch.distributed, or 0.
        memory: What `start_memory_history_recording` returned.
    """
    own_rank = _own_rank() if rank is None else rank
    profilers: list[StepProfiler] = []
    if settings.use_pytorch_profiler:
        profilers.append(TorchTrace(settings, folder=Path(folder), rank=own_rank))
    if settings.use_nsys_profiler or settings.nvtx_ranges:
        profilers.extend(_nsys(settings))
    if memory is not None:
        profilers.append(memory)
    return ProfilingCallback(settings, profilers, rank=own_rank)


def _nsys(settings: ProfilingConfig) -> list[StepProfiler]:
    if not torch.cuda.is_available():
        _logger.warning("profiling: there is no GPU, so nothing is marked or collected for Nsight Systems")
        return []
    profilers: list[StepProfiler] = []
    if settings.use_nsys_profiler:
        markers: Any = partial(torch.autograd.profiler.emit_nvtx, record_shapes=settings.record_shapes)
        profilers.append(NsysRange(torch.cuda.profiler, markers))
    if settings.nvtx_ranges:
        profilers.append(StepRanges(torch.cuda.nvtx))
    return profilers


def _own_rank() -> int:
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
