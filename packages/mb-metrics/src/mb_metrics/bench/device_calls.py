"""Counts of the calls with which the host launches kernels, waits for the GPU, and reads numbers. Adapter for torch."""

from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from mb_metrics.bench.kernels import WAITS

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
