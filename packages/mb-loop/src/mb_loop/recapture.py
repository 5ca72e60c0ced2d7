"""Graphs of a whole step that follow a batch whose number of microbatches changes. No torch."""

from collections.abc import Callable, MutableMapping
from typing import Any


class RecaptureOnChange:
    """A schedule in a graph, captured again where a call has another number of microbatches than the one before.

    A captured graph replays the microbatches that it was captured with: without this, a growing batch would train on
    too few of them, and a smaller one on stale inputs. Training and evaluation have a graph each.

    Args:
        schedule: Runs, captures and replays, as Megatron Core's FullCudaGraphWrapper; takes keyword arguments, among
            them `num_microbatches` and `forward_only`.
        drop_graph: Drops the graph of a stage, "training" or "validation"; the schedule then warms up and captures
            again.
            All ranks call it at the same step, because they have the same number of microbatches.
        captured: Stage -> number of microbatches of its last call. It lives as long as the graphs do.
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
        """Run the forward-backward passes of a step, after dropping a graph of another number of them."""
        stage = "validation" if forward_only else "training"
        if self._captured.setdefault(stage, num_microbatches) != num_microbatches:
            self._drop_graph(stage)
            self._captured[stage] = num_microbatches
        return self._schedule(num_microbatches=num_microbatches, forward_only=forward_only, **arguments)
