"""Callback that measures the steps of a training loop, and counts calls of the host. Adapter for torch."""

import json
import resource
from collections import Counter
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from mb_metrics.bench.kernels import WAITS
from mb_metrics.bench.result import BenchResult
from mb_metrics.recorder.clock import DeviceTimer
from mb_metrics.recorder.interval import sum_if_known
from mb_metrics.recorder.reductions import own_rank
from mb_metrics.run.recorders import device_peak_tflops
from mb_metrics.run.training_context import MetricsContext
from mb_schema.files import write_atomically

_KIB, _GIB = 2**10, 2**30


class BenchRecorder:
    """Callback that measures a number of steps, and writes the result when training ends.

    A step lasts from the end of the step before to its own end, so that waiting for data counts. On a GPU both ends are
    events of the current stream: the measurement does not synchronize with the device. Then follow the steps in which
    a profiler counts calls. Every rank has a callback; the last one, which knows the losses, writes the file.

    The model FLOPs are those that the loop counts in `state.train_state.floating_point_operations_so_far`, and the
    peak is that of the precision of `state.cfg.model`; without them there is no MFU.

    The arguments are the fields of a `BenchRequest`.
    """

    def __init__(self, *, result: Path, steps: int, warmup: int, profiled: int, trace: Path | None) -> None:
        self.target, self.trace = result, trace
        self.steps, self.warmup, self.profiled = steps, warmup, profiled
        self._ended_steps = 0
        self._timer = DeviceTimer()
        self._marks: list[Any] = []
        self._flops: list[float] = []
        self._tokens: list[int | None] = []
        self._losses: list[Any] = []
        self._counter: CallCounter | None = None
        self._gpu = torch.cuda.is_available()

    def on_train_step_end(self, context: MetricsContext) -> None:
        """Take the time of the step, and start to count calls after the last measured one."""
        self._ended_steps += 1
        measured = self._ended_steps - self.warmup
        if 0 <= measured <= self.steps:
            self._mark(context)
        result = context.result
        if result is not None and measured <= self.steps:
            self._keep(result, measured=measured > 0)
        if measured == self.steps and self.profiled:
            self._counter = CallCounter(trace=self.trace if own_rank() == 0 else None)
            self._counter.__enter__()

    def on_train_start(self, context: MetricsContext) -> None:
        """Take the time of the start, which is that of the first step without a warm-up."""
        if self.warmup == 0:
            self._mark(context)

    def on_train_end(self, context: Any) -> None:
        """Write the result. Collective; nothing is written if the run ended before the last measured step."""
        if self._counter is not None:
            self._counter.__exit__(None, None, None)
        if len(self._marks) <= self.steps:
            return
        result = self._result(context)
        if own_rank() == result.world_size - 1:
            write_atomically(self.target, json.dumps(result.to_dict()))

    def _keep(self, result: Any, *, measured: bool) -> None:
        if measured:
            self._tokens.append(result.tokens)
        loss = next(iter(result.losses.values()), None)
        if loss is not None:
            self._losses.append(loss.detach().clone() if isinstance(loss, torch.Tensor) else loss)

    def _mark(self, context: MetricsContext) -> None:
        self._marks.append(self._timer.mark())
        counters = context.state.train_state
        self._flops.append(float(getattr(counters, "floating_point_operations_so_far", 0)))

    def _result(self, context: Any) -> BenchResult:
        world_size = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
        config = getattr(context.state, "cfg", None)
        counter, flops = self._counter, self._flops[-1] - self._flops[0]

        def per_step(names: frozenset[str]) -> float | None:
            return None if counter is None else counter.total(names) / self.profiled

        return BenchResult(
            device=torch.cuda.get_device_name() if self._gpu else "cpu",
            world_size=world_size,
            warmup_steps=self.warmup,
            step_times=tuple(self._timer.seconds(begin, end) for begin, end in pairwise(self._marks)),
            tokens=sum_if_known(self._tokens) or None,
            flops=flops or None,
            peak_tflops=None if config is None else device_peak_tflops(config.model),
            peak_memory_gib=_over_ranks(_peak_memory(gpu=self._gpu), world_size) / _GIB,
            synchronizations_per_step=per_step(WAITS) if self._gpu else None,
            scalar_reads_per_step=per_step(READS),
            kernel_launches_per_step=per_step(LAUNCHES) if self._gpu else None,
            losses=tuple(map(float, self._losses)),
        )


def _peak_memory(*, gpu: bool) -> int:
    if gpu:
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KIB


def _over_ranks(number: int, world_size: int) -> int:
    """Return the largest number of all ranks. Collective."""
    if world_size == 1:
        return number
    numbers: list[int] = [0] * world_size
    dist.all_gather_object(numbers, number)
    return max(numbers)


LAUNCHES = frozenset(
    {
        *("cudaLaunchKernel", "cudaLaunchKernelExC", "cudaLaunchCooperativeKernel"),
        *("cuLaunchKernel", "cuLaunchKernelEx", "cudaGraphLaunch", "cudaMemsetAsync"),
    }
)
"""Runtime and driver calls that put work on a stream. A graph is one launch, however many kernels it contains."""
READS = frozenset({"aten::_local_scalar_dense"})
"""Operation behind `item()`, `float(tensor)` and `bool(tensor)` on any device."""


class CallCounter:
    """Context manager that counts the calls of the host while it is open; slows them down.

    Args:
        trace: Receives the trace, with the stacks of Python, for `mb_metrics.bench.kernels`; None: none is written.

    Attributes:
        counts: Name of a call to how often it was made. Set when the context ends.
    """

    def __init__(self, *, trace: Path | None = None) -> None:
        self._trace = trace
        self.counts: Counter[str] = Counter()
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        # torch declares no types
        self._profile: Any = profile(activities=activities, with_stack=trace is not None)

    def __enter__(self) -> "CallCounter":
        self._profile.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._profile.__exit__(kind, error, traceback)
        if self._trace is not None:
            self._profile.export_chrome_trace(str(self._trace))
        counted = LAUNCHES | WAITS | READS
        self.counts = Counter(event.name for event in self._profile.events() if event.name in counted)

    def total(self, names: frozenset[str]) -> int:
        """Return how often the host made one of several calls."""
        return sum(self.counts[name] for name in names)
