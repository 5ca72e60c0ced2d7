"""Recapture of full-iteration CUDA graphs when the number of microbatches changes. Does not import torch."""

from collections.abc import Callable, MutableMapping
from typing import Any


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
