"""Schedule of CUDA graph capture. Does not import torch."""

from typing import Protocol

from mb_loop.step.hooks import ForwardPreHooks


class CudaGraphs(Protocol):
    """CUDA graphs of a model, such as Megatron's TECudaGraphHelper captures."""

    @property
    def warmup_steps(self) -> int:
        """Steps before the capture."""

    def capture(self) -> None:
        """Capture the graphs. All parameters are gathered and the forward pre-hooks are disabled."""

    def set_manual_hooks(self) -> None:
        """Register the work of the forward pre-hooks with the graphs, in which hooks do not run."""

    def delete(self) -> None:
        """Delete the graphs, after the last step."""


class GraphCapture:
    """One-time capture of CUDA graphs, before the first step after the warm-up of this process.

    Args:
        graphs: graphs to capture.
        hooks: disabled during the capture.
        start_step: step at which this run starts.
    """

    def __init__(self, graphs: CudaGraphs, *, hooks: ForwardPreHooks, start_step: int) -> None:
        self._graphs = graphs
        self._hooks = hooks
        self._start_step = start_step
        self._captured = False
        self._hooked = False

    def before_step(self, step: int) -> None:
        """Capture if the warm-up is complete. `step`: finished steps."""
        if not self._captured and step - self._start_step >= self._graphs.warmup_steps:
            with self._hooks.paused():
                self._graphs.capture()
            self._captured = True
        if self._captured and not self._hooked and self._hooks.on:
            self._graphs.set_manual_hooks()
            self._hooked = True

    def end(self) -> None:
        """Delete captured graphs."""
        if self._captured:
            self._graphs.delete()
