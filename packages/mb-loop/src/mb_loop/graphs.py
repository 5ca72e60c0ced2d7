"""When CUDA graphs are captured; who captures them is handed in. No torch."""

from typing import Protocol

from mb_loop.hooks import ForwardPreHooks


class CudaGraphs(Protocol):
    """Captures the graphs of a model, as Megatron's TECudaGraphHelper does."""

    @property
    def warmup_steps(self) -> int:
        """Steps to be made before the capture."""

    def capture(self) -> None:
        """Capture; the parameters are whole and the forward pre-hooks off."""

    def set_manual_hooks(self) -> None:
        """Put the work of the forward pre-hooks into the graphs, where no hook can run."""

    def delete(self) -> None:
        """Let go of the graphs, after the last step."""


class GraphCapture:
    """Captures once, before the first step that has had its warm-up, whichever step that is.

    Args:
        graphs: None: nothing is captured.
        hooks: switched off around the capture.
        start_step: the step that this run starts from.
    """

    def __init__(self, graphs: CudaGraphs | None, *, hooks: ForwardPreHooks, start_step: int) -> None:
        self._graphs = graphs
        self._hooks = hooks
        self._start_step = start_step
        self._captured = False
        self._hooked = False

    def before_step(self, step: int) -> None:
        """Capture if it is time. `step`: steps made so far."""
        if self._graphs is None:
            return
        if not self._captured and step - self._start_step >= self._graphs.warmup_steps:
            with self._hooks.paused():
                self._graphs.capture()
            self._captured = True
        if self._captured and not self._hooked and self._hooks.on:
            self._graphs.set_manual_hooks()
            self._hooked = True

    def end(self) -> None:
        """Let go of captured graphs."""
        if self._graphs is not None and self._captured:
            self._graphs.delete()
