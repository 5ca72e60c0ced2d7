"""Interface of machines that repeat steps with suspicious results. Does not import torch."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol


class RerunMachine(Protocol):
    """Decides whether the forward-backward passes of a step are repeated; see `mb_loop.mcore.MegatronRerunMachine`."""

    def begin(self, step: int, data_iterator: Any, model: Sequence[Any] = ()) -> Any:
        """Start after `step` finished steps; return the iterator to read from, which can repeat its data.

        The passes of a step may update buffers of the chunks of `model`; a repetition restores them.
        """

    def should_run_forward_backward(self, data_iterator: Any) -> bool:
        """Return whether to run the passes of this step (again). Called until it returns False."""

    def should_checkpoint_and_exit(self) -> tuple[bool, bool, int]:
        """Return (save, leave without an update, exit code)."""

    def discarding(self, data_iterator: Any) -> AbstractContextManager[None]:
        """Count a step whose data is discarded within the block; the step is never repeated."""

    def paused(self) -> AbstractContextManager[None]:
        """Check no results within the block, such as an evaluation."""


def checks_paused(machine: RerunMachine | None) -> AbstractContextManager[None]:
    """Return a context manager in which results are not checked; `machine` is None if they never are."""
    return nullcontext() if machine is None else machine.paused()
