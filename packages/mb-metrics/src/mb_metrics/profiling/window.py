"""Profiling of a window of steps, finalized however training ends. Does not import torch."""

import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from mb_metrics.profiling.config import ProfilingConfig

_logger = logging.getLogger(__name__)


class StepProfiler(Protocol):
    """Profiler of a window of steps. A class may inherit from this one and override only the methods it needs."""

    warmup: int = 0
    """Number of steps before the window at which the profiler must start."""

    def begin(self, *, warmup: int, steps: int) -> None:
        """Start with the next step: `warmup` steps are discarded, then the window has `steps` steps."""
        return

    def step_begin(self, step: int) -> None:
        """Handle the start of a step; `step` is the number of completed steps."""
        return

    def step_end(self, step: int) -> None:
        """Handle the end of a step; `step` is the number of completed steps, including it."""
        return

    def end(self) -> None:
        """Stop and write the results, even of an incomplete window. Called once for each `begin`."""


def is_profiled(profile_ranks: Collection[int], rank: int) -> bool:
    """Return True if a rank is profiled; an empty list of ranks means every rank."""
    return not profile_ranks or rank in profile_ranks


class ProfilingCallback:
    """Callback that profiles a window of steps; custom loops call `step_begin` and `step_end` around each step.

    A run that resumes inside the window profiles the rest of it. A run that ends inside the window, by an exception
    or otherwise, writes the partial results. A profiler that raises is logged and disabled, so that it does not end
    the run.

    Args:
        settings: A `ProfilingConfig`, or an object with its fields.
        profilers: The profilers of the window.
        rank: Rank of this process; the callback does nothing on ranks that are not profiled.
    """

    def __init__(self, settings: ProfilingConfig, profilers: Sequence[StepProfiler], *, rank: int) -> None:
        self._start, self._end = settings.profile_step_start, settings.profile_step_end
        chosen = is_profiled(settings.profile_ranks, rank)
        self._waiting = list(profilers) if chosen else []
        self._running: list[StepProfiler] = []

    @property
    def is_active(self) -> bool:
        """Whether this rank has a profiler that runs or will run."""
        return bool(self._waiting or self._running)

    def step_begin(self, step: int) -> None:
        """Start the profilers that are due; `step` is the number of completed steps."""
        for profiler in list(self._waiting):
            if self._start - profiler.warmup <= step < self._end:
                self._waiting.remove(profiler)
                warmup = max(0, self._start - step)
                steps = self._end - max(step, self._start)
                if self._try(profiler, partial(profiler.begin, warmup=warmup, steps=steps)):
                    self._running.append(profiler)
        self._each(lambda profiler: profiler.step_begin(step))

    def step_end(self, step: int) -> None:
        """Stop the profilers at the end of the window; `step` is the number of completed steps, including this one."""
        self._each(lambda profiler: profiler.step_end(step))
        if step >= self._end:
            self.close()

    def close(self) -> None:
        """Stop the running profilers. A second call does nothing."""
        running, self._running = self._running, []
        for profiler in running:
            self._try(profiler, profiler.end)

    def on_train_step_start(self, context: Any) -> None:
        """Call `step_begin` with `context.state.train_state.step`."""
        self.step_begin(context.state.train_state.step)

    def on_train_step_end(self, context: Any) -> None:
        """Call `step_end` with `context.state.train_state.step`."""
        self.step_end(context.state.train_state.step)

    def on_train_end(self, context: Any) -> None:
        """Call `close`."""
        self.close()

    def _each(self, action: Callable[[StepProfiler], None]) -> None:
        for profiler in list(self._running):
            if not self._try(profiler, partial(action, profiler)):
                self._running.remove(profiler)

    def _try(self, profiler: StepProfiler, action: Callable[[], None]) -> bool:
        try:
            action()
        except Exception:
            _logger.exception("profiling: %s failed and is disabled", type(profiler).__name__)
            return False
        return True


class CudaProfiler(Protocol):
    """Interface of the CUDA profiler, implemented by torch.cuda.profiler."""

    def start(self) -> object:
        """Start the collection of a waiting profiler session."""

    def stop(self) -> object:
        """Stop the collection."""


class NsysRange(StepProfiler):
    """Capture range of Nsight Systems for the window (`nsys profile --capture-range=cudaProfilerApi`).

    Args:
        profiler: CUDA profiler that starts and stops the collection.
        markers: Factory of a context manager that marks each operation (torch.autograd.profiler.emit_nvtx).
    """

    def __init__(self, profiler: CudaProfiler, markers: Callable[[], AbstractContextManager[object]]) -> None:
        self._profiler = profiler
        self._markers = markers
        self._running = ExitStack()

    def begin(self, *, warmup: int, steps: int) -> None:
        """Start the collection, then the markers."""
        self._profiler.start()
        self._running.callback(self._profiler.stop)
        self._running.enter_context(self._markers())

    def end(self) -> None:
        """Stop the markers, then the collection."""
        self._running.close()


class NvtxRanges(Protocol):
    """Named ranges on the timeline of Nsight Systems, implemented by torch.cuda.nvtx."""

    def range_push(self, name: str) -> object:
        """Start a range nested in the current one."""

    def range_pop(self) -> object:
        """End the innermost range."""


class StepRanges(StepProfiler):
    """NVTX range for each step of the window, named "training_step_<completed steps before it>"."""

    def __init__(self, ranges: NvtxRanges) -> None:
        self._ranges = ranges
        self._open = False

    def step_begin(self, step: int) -> None:
        """Start the range of the step."""
        self._ranges.range_push(f"training_step_{step}")
        self._open = True

    def step_end(self, step: int) -> None:
        """End the range of the step."""
        self.end()

    def end(self) -> None:
        """End the range of a failed step, if it is open."""
        if self._open:
            self._open = False
            self._ranges.range_pop()


class MemoryRecorder(Protocol):
    """Recorder of the memory history of the CUDA allocator."""

    def record(self) -> None:
        """Start to record allocations and frees with their stacks."""

    def write(self, path: Path) -> None:
        """Write the recorded history and the current allocations."""

    def on_out_of_memory(self, action: Callable[[], None]) -> None:
        """Call `action` when an allocation runs out of memory, before the error is raised."""


class MemorySnapshot(StepProfiler):
    """Memory history that is written at the end of the window and when memory runs out.

    Recording starts with `start`; call it before the model is built.

    Args:
        recorder: Recorder of the memory history.
        path: Path of the snapshots; "_<rank>", or "_oom_rank-<rank>" if memory ran out, is inserted before the suffix.
        rank: Rank of this process.
    """

    def __init__(self, recorder: MemoryRecorder, path: str | Path, *, rank: int) -> None:
        self._recorder = recorder
        base = Path(path)
        self.at_end = base.with_name(f"{base.stem}_{rank}{base.suffix}")
        self.at_out_of_memory = base.with_name(f"{base.stem}_oom_rank-{rank}{base.suffix}")

    def start(self) -> None:
        """Start recording."""
        self._recorder.record()
        self._recorder.on_out_of_memory(lambda: self._write(self.at_out_of_memory))

    def end(self) -> None:
        """Write the snapshot."""
        self._write(self.at_end)

    def _write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._recorder.write(path)
        _logger.info("profiling: wrote the memory history to %s", path)
