"""Capture of CUDA graphs: after the warm-up, and again when the number of microbatches changes. Without torch."""

from collections.abc import Callable, MutableMapping
from typing import Any, Protocol

from mb_loop.step.hooks import ForwardPreHooks


class CudaGraphs(Protocol):
    """CUDA graphs of a model, such as Megatron's TECudaGraphHelper captures."""

    @property
    def warmup_steps(self) -> int:
        """Trained steps before the capture."""

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
    """

    def __init__(self, graphs: CudaGraphs, *, hooks: ForwardPreHooks) -> None:
        self._graphs = graphs
        self._hooks = hooks
        self._trained_steps = 0
        self._captured = False
        self._hooked = False

    def before_step(self) -> None:
        """Capture if the warm-up is complete. Called before each step that is trained."""
        self._trained_steps += 1
        if not self._captured and self._trained_steps > self._graphs.warmup_steps:
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


class RecaptureOnChange:
    """Schedule in a CUDA graph that is captured again if the number of microbatches differs from the previous call.

    A captured graph replays the number of microbatches that it was captured with. Without a recapture, a larger batch
    would train on too few microbatches, and a smaller one on stale inputs. Training and evaluation have separate
    graphs.

    Args:
        schedule: Runs, captures and replays, as Megatron Core's FullCudaGraphWrapper does; takes keyword arguments,
            including `num_microbatches` and `forward_only`.
        drop_graph: Drops the graph of a stage, "training" or "validation"; the schedule then warms up and captures
            again.
            Called at the same step on all ranks, because all ranks have the same number of microbatches.
        captured: Stage -> number of microbatches of its last call. Must have the lifetime of the graphs.
    """

    def __init__(
        self,
        schedule: Callable[..., Any],
        *,
        drop_graph: Callable[[str], None],
        captured: MutableMapping[str, int],
    ) -> None:
        self._schedule = schedule
        self._drop_graph = drop_graph
        self._captured = captured

    def __call__(self, *, num_microbatches: int, forward_only: bool, **arguments: Any) -> Any:
        """Run the forward-backward passes of a step; drop the graph first if the number of microbatches changed."""
        stage = "validation" if forward_only else "training"
        if self._captured.setdefault(stage, num_microbatches) != num_microbatches:
            self._drop_graph(stage)
            self._captured[stage] = num_microbatches
        return self._schedule(num_microbatches=num_microbatches, forward_only=forward_only, **arguments)
