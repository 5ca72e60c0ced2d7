"""Protocols of what the callbacks of this package read of an event's context, such as `mb_loop.CallbackContext`.

The callbacks are plain classes with `on_*` methods. A loop that fires the same events may pass any object with these
attributes.
"""

from typing import Protocol


class StepCounters(Protocol):
    """Counters of a run, such as `mb_loop.TrainState`."""

    @property
    def step(self) -> int:
        """Number of finished steps; at the end of a step, the step is counted."""

    @property
    def floating_point_operations_so_far(self) -> float:
        """Operations of all finished steps on all ranks; constant if they are unknown."""


class RunState(Protocol):
    """State of a run."""

    @property
    def train_state(self) -> StepCounters:
        """Counters of the run."""


class StepContext(Protocol):
    """Context of the events of steps and evaluations."""

    @property
    def state(self) -> RunState:
        """State of the run."""


class CheckpointContext(StepContext, Protocol):
    """Context of `on_checkpoint_start`."""

    @property
    def checkpoint_work(self) -> str | None:
        """Work that holds the loop: "save", or "finalize" while background saves are polled."""
