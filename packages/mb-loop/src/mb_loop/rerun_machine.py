"""Interface of machines that repeat steps with suspicious results. Does not import torch."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol


class RerunMachine(Protocol):
    """Decides whether the forward-backward passes of a step are repeated; see `mb_loop.mcore.MegatronRerunMachine`."""

    def begin(self, step: int, data_iterator: Any) -> Any:
        """Start after `step` finished steps; return the iterator to read from, which can repeat its data."""

    def should_run_forward_backward(self, data_iterator: Any) -> bool:
        """Return whether to run the passes of this step (again). Called until it returns False."""

    def should_checkpoint_and_exit(self) -> tuple[bool, bool, int]:
        """Return (save, leave without an update, exit code)."""

    def discarding(self, data_iterator: Any) -> AbstractContextManager[None]:
        """Count a step whose data is discarded within the block; the step is never repeated."""

    def paused(self) -> AbstractContextManager[None]:
        """Check no results within the block, such as an evaluation."""


class NoRerunMachine:
    """Rerun machine that runs every step once and accepts every result."""

    def __init__(self) -> None:
        self._run = False

    def begin(self, step: int, data_iterator: Any) -> Any:
        """Return the iterator itself."""
        return data_iterator

    def should_run_forward_backward(self, data_iterator: Any) -> bool:
        """Return True and False alternately."""
        self._run = not self._run
        return self._run

    def should_checkpoint_and_exit(self) -> tuple[bool, bool, int]:
        """Return that training continues."""
        return False, False, 0

    @contextmanager
    def discarding(self, data_iterator: Any) -> Iterator[None]:
        """Do nothing."""
        yield

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Do nothing."""
        yield
