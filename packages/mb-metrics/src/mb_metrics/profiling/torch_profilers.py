"""Profilers of a run: those of torch and CUDA for a `ProfilingConfig`, and tensor inspection. Adapter for torch."""

import logging
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile, schedule

from mb_metrics.profiling.config import ProfilingConfig, TensorInspectConfig
from mb_metrics.profiling.tensor_inspect import TensorInspection, start_tensor_inspection
from mb_metrics.profiling.window import (
    MemoryRecorder,
    MemorySnapshot,
    NsysRange,
    ProfilingCallback,
    StepProfiler,
    StepRanges,
    is_profiled,
)
from mb_metrics.recorder.reductions import own_rank

_logger = logging.getLogger(__name__)

_MAX_ENTRIES = 100_000


class TorchTrace(StepProfiler):
    """Profiler that writes a Chrome trace of the window and, if configured, a Chakra trace.

    The paths are <folder>/torch_profile/rank-<rank>.json.gz and <folder>/chakra/rank-<rank>.json.gz. The step before
    the window, if there is one, warms up the profiler.
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

    def step_end(self, step: int) -> None:
        """Advance the profiler, which writes the trace after the last step of the window."""
        if self._profile is not None:
            self._profile.step()

    def end(self) -> None:
        """Stop the profiler, which writes the trace of an incomplete window."""
        if self._profile is not None:
            self._profile.stop()
            self._profile = None
        if self._observer is not None:
            self._observer.unregister_callback()  # compresses the file
            self._observer = None


class TorchMemoryRecorder:
    """Recorder of the memory history of torch's CUDA allocator."""

    def record(self) -> None:
        """Record the latest 100,000 allocations and frees with their stacks."""
        torch.cuda.memory._record_memory_history(max_entries=_MAX_ENTRIES)

    def write(self, path: Path) -> None:
        """Write the snapshot as a pickle file for https://pytorch.org/memory_viz."""
        with path.open("wb") as file:
            pickle.dump(torch.cuda.memory._snapshot(), file)

    def on_out_of_memory(self, action: Callable[[], None]) -> None:
        """Attach an observer to the allocator."""

        def observe(device: int, allocated: int, total: int, free: int) -> None:
            action()

        torch._C._cuda_attach_out_of_memory_observer(observe)  # type: ignore[attr-defined]


def start_memory_history_recording(
    profiling: ProfilingConfig | None,
    *,
    rank: int | None = None,
    recorder: MemoryRecorder | None = None,
) -> MemorySnapshot | None:
    """Start to record GPU allocations, which are written when memory runs out.

    Call it before the model is built. Returns None without a configuration, if the history is not enabled, on a rank
    that is not profiled and, with a warning, without a GPU. Pass the result to `build_profiling`, so that the snapshot
    is written at the end of the window.

    Args:
        profiling: Section `profiling`.
        rank: Rank of this process; None: the rank of torch.distributed, or 0.
        recorder: Recorder of the memory history; None: torch's allocator.
    """
    rank = own_rank() if rank is None else rank
    if (
        profiling is None
        or not profiling.record_memory_history
        or not is_profiled(profiling.profile_ranks, rank)
    ):
        return None
    if recorder is None and not torch.cuda.is_available():
        _logger.warning(
            "profiling.record_memory_history: no GPU is available, so no memory history is recorded"
        )
        return None
    snapshot = MemorySnapshot(recorder or TorchMemoryRecorder(), profiling.memory_snapshot_path, rank=rank)
    snapshot.start()
    return snapshot


def build_profiling(
    settings: ProfilingConfig,
    *,
    folder: str | Path,
    rank: int | None = None,
    memory: MemorySnapshot | None = None,
) -> ProfilingCallback:
    """Return the profiling callback for this rank.

    Nsight Systems and its markers require a GPU: without one they are omitted with a warning.

    Args:
        settings: The profiling section.
        folder: Parent folder of the traces in torch_profile/ and chakra/.
        rank: Rank of this process; None: the rank of torch.distributed, or 0.
        memory: Return value of `start_memory_history_recording`.
    """
    rank = own_rank() if rank is None else rank
    profilers: list[StepProfiler] = []
    if settings.use_pytorch_profiler:
        profilers.append(TorchTrace(settings, folder=Path(folder), rank=rank))
    if settings.use_nsys_profiler or settings.nvtx_ranges:
        profilers.extend(_nsys(settings))
    if memory is not None:
        profilers.append(memory)
    return ProfilingCallback(settings, profilers, rank=rank)


def _nsys(settings: ProfilingConfig) -> list[StepProfiler]:
    if not torch.cuda.is_available():
        _logger.warning(
            "profiling: no GPU is available, so nothing is marked or collected for Nsight Systems"
        )
        return []
    profilers: list[StepProfiler] = []
    if settings.use_nsys_profiler:
        markers: Any = partial(torch.autograd.profiler.emit_nvtx, record_shapes=settings.record_shapes)
        profilers.append(NsysRange(torch.cuda.profiler, markers))
    if settings.nvtx_ranges:
        profilers.append(StepRanges(torch.cuda.nvtx))
    return profilers


@dataclass(frozen=True, slots=True, kw_only=True)
class RunProfilers:
    """Active profilers of the sections `profiling` and `tensor_inspect`."""

    profiling: ProfilingCallback | None
    """Profilers of the window of steps; None: there are none on this rank."""
    inspection: TensorInspection | None
    """Started tensor inspection; None: not enabled."""

    def attach(self, chunks: Sequence[Any]) -> list[object]:
        """Attach the profilers to the model, and return their callbacks, in the order of registration.

        Args:
            chunks: Model chunks of this rank.
        """
        if self.inspection is not None:
            self.inspection.attach(list(chunks))
        return [each for each in (self.inspection, self.profiling) if each is not None]


def start_profilers(
    profiling: ProfilingConfig | None,
    tensor_inspect: TensorInspectConfig | None,
    *,
    folder: str | Path,
    rank: int = 0,
    save: str | Path | None = None,
    loaded_step: int = 0,
) -> RunProfilers:
    """Start the memory history and the tensor inspection. Call it before the model is built, and `attach` after that.

    Args:
        profiling: Section `profiling`; None: nothing is profiled.
        tensor_inspect: Section `tensor_inspect`; None: no tensor is inspected.
        folder: Parent folder of the traces in torch_profile/ and chakra/.
        rank: Rank of this process.
        save: Checkpoint folder, the default folder of the logs of tensor inspection.
        loaded_step: Step of the checkpoint that the run resumes from.

    Raises:
        TensorInspectError: tensors cannot be inspected as configured.
    """
    callback = None
    if profiling is not None:
        memory = start_memory_history_recording(profiling, rank=rank)
        callback = build_profiling(profiling, folder=folder, rank=rank, memory=memory)
    return RunProfilers(
        profiling=callback if callback is not None and callback.is_active else None,
        inspection=start_tensor_inspection(tensor_inspect, save=save, loaded_step=loaded_step, rank=rank),
    )
