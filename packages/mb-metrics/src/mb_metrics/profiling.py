"""Profiling of a window of steps: what begins and ends with it, whatever way training ends. Imports no torch."""

import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Protocol

_logger = logging.getLogger(__name__)


class ProfilingSettings(Protocol):
    """What is read of a `ProfilingConfig`."""

    @property
    def profile_step_start(self) -> int:
        """Steps done when the window begins."""

    @property
    def profile_step_end(self) -> int:
        """Steps done when it ends."""

    @property
    def profile_ranks(self) -> Collection[int]:
        """Ranks that are profiled; empty: every rank."""


class StepProfiler(Protocol):
    """What profiles a window of steps."""

    warmup: int
    """Steps before the window from which on it must run."""

    def begin(self, *, warmup: int, steps: int) -> None:
        """Begin with the next step: the first `warmup` steps are not wanted, and the window has `steps` steps."""

    def step_begin(self, step: int) -> None:
        """Hear that a step begins, after so many steps."""

    def step_end(self, step: int) -> None:
        """Hear that a step has ended, so many in all."""

    def end(self) -> None:
        """End, and write down what there is, be it the whole window or not. Called once for each `begin`."""


def is_profiled(profile_ranks: Collection[int], rank: int) -> bool:
    """Tell whether a rank is profiled: an empty list of ranks is every rank."""
    return not profile_ranks or rank in profile_ranks


class ProfilingCallback:
    """Profiles the steps of a window; a callback for a training loop, or to be called by hand around each step.

    A run that resumes inside the window profiles the rest of it; one that ends inside, by an exception too, writes down
    what it has. An instrument that fails is logged and left: a profile is never worth a training run.

    Args:
        settings: A `ProfilingConfig`, or what has its fields.
        instruments: What profiles.
        rank: Of this process; nothing is done on ranks that are not profiled.
    """

    def __init__(self, settings: ProfilingSettings, profilers: Sequence[StepProfiler], *, rank: int) -> None:
        self._start, self._end = settings.profile_step_start, settings.profile_step_end
        chosen = is_profiled(settings.profile_ranks, rank)
        self._waiting = list(profilers) if chosen else []
        self._running: list[StepProfiler] = []

    def step_begin(self, step: int) -> None:
        """Begin what must run in the next step; `step` is how many are done."""
        for profiler in list(self._waiting):
            if self._start - profiler.warmup <= step < self._end:
                self._waiting.remove(profiler)
                warmup = max(0, self._start - step)
                steps = self._end - max(step, self._start)
                if self._try(profiler, partial(profiler.begin, warmup=warmup, steps=steps)):
                    self._running.append(profiler)
        self._each(lambda profiler: profiler.step_begin(step))

    def step_end(self, step: int) -> None:
        """End what the window ends with; `step` is how many are done, the one that has ended included."""
        self._each(lambda profiler: profiler.step_end(step))
        if step >= self._end:
            self.close()

    def close(self) -> None:
        """End what still runs. A second call does nothing."""
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
            _logger.exception("profiling: %s failed, and does no more", type(profiler).__name__)
            return False
        return True


class CudaProfiler(Protocol):
    """The CUDA profiler's interface, that is torch.cuda.profiler."""

    def start(self) -> object:
        """Start the collection of the session that waits for it."""

    def stop(self) -> object:
        """Stop it."""


class NsysRange:
    """The window as a capture range of Nsight Systems (`nsys profile --capture-range=cudaProfilerApi`).

    Args:
        profiler: Starts and stops the collection.
        markers: Makes what marks each operation while the window lasts (torch.autograd.profiler.emit_nvtx).
    """

    warmup = 0

    def __init__(self, profiler: CudaProfiler, markers: Callable[[], AbstractContextManager[object]]) -> None:
        self._profiler = profiler
        self._markers = markers
        self._running = ExitStack()

    def begin(self, *, warmup: int, steps: int) -> None:
        """Start the collection, then the markers."""
        self._profiler.start()
        self._running.callback(self._profiler.stop)
        self._running.enter_context(self._markers())

    def step_begin(self, step: int) -> None:
        """Do nothing."""

    def step_end(self, step: int) -> None:
        """Do nothing."""

    def end(self) -> None:
        """Stop the markers, then the collection."""
        self._running.close()


class NvtxRanges(Protocol):
    """Named ranges on the time line of Nsight Systems, that is torch.cuda.nvtx."""

    def range_push(self, name: str) -> object:
        """Begin a range inside the current one."""

    def range_pop(self) -> object:
        """End the newest range."""


class StepRanges:
    """Marks each step of the window for Nsight Systems as "training_step_<steps done before it>"."""

    warmup = 0

    def __init__(self, ranges: NvtxRanges) -> None:
        self._ranges = ranges
        self._open = False

    def begin(self, *, warmup: int, steps: int) -> None:
        """Do nothing."""

    def step_begin(self, step: int) -> None:
        """Begin the step's range."""
        self._ranges.range_push(f"training_step_{step}")
        self._open = True

    def step_end(self, step: int) -> None:
        """End it."""
        self.end()

    def end(self) -> None:
        """End a range that a failing step left open."""
        if self._open:
            self._open = False
            self._ranges.range_pop()


class MemoryRecorder(Protocol):
    """The recorder of the CUDA allocator."""

    def record(self) -> None:
        """Record allocations and frees from now on, with their stacks."""

    def write(self, path: Path) -> None:
        """Write what was recorded and what is allocated now."""

    def on_out_of_memory(self, action: Callable[[], None]) -> None:
        """Call `action` when an allocation fails for want of memory, before the error is raised."""


class MemorySnapshot:
    """Writes the memory history when the window ends, and when memory runs out.

    Recording begins with `start`, best before the model is built.

    Args:
        recorder: Records.
        path: Of the snapshots: "_<rank>" goes before the extension, "_oom_rank-<rank>" when memory runs out.
        rank: Of this process.
    """

    warmup = 0

    def __init__(self, recorder: MemoryRecorder, path: str | Path, *, rank: int) -> None:
        self._recorder = recorder
        base = Path(path)
        self.at_end = base.with_name(f"{base.stem}_{rank}{base.suffix}")
        self.at_out_of_memory = base.with_name(f"{base.stem}_oom_rank-{rank}{base.suffix}")

    def start(self) -> None:
        """Record from now on."""
        self._recorder.record()
        self._recorder.on_out_of_memory(lambda: self._write(self.at_out_of_memory))

    def begin(self, *, warmup: int, steps: int) -> None:
        """Do nothing: it is recorded from the start."""

    def step_begin(self, step: int) -> None:
        """Do nothing."""

    def step_end(self, step: int) -> None:
        """Do nothing."""

    def end(self) -> None:
        """Write the snapshot."""
        self._write(self.at_end)

    def _write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._recorder.write(path)
        _logger.info("profiling: wrote the memory history to %s", path)
