"""Whether a step is run again: the machine that decides is handed in. No torch."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol


class RerunMachine(Protocol):
    """Decides after the passes of a step whether they are made again; `mb_loop.mcore.MegatronRerunMachine` fits."""

    def begin(self, step: int, data_iterator: Any) -> Any:
        """Take note of the steps made so far; return the iterator to read from, which can give its data twice."""

    def should_run_forward_backward(self, data_iterator: Any) -> bool:
        """Say whether to make the passes of this step (again). Asked until it says no."""

    def should_checkpoint_and_exit(self) -> tuple[bool, bool, int]:
        """Say whether to save, whether to leave without an update, and with which exit code."""

    def discarding(self, data_iterator: Any) -> AbstractContextManager[None]:
        """Use up, in the block, the data of a step that is left out: it counts, and is never run again."""

    def paused(self) -> AbstractContextManager[None]:
        """Look at no result in the block: an evaluation."""


class NoRerunMachine:
    """Every step is run once, and every result is taken."""

    def __init__(self) -> None:
        self._run = False

    def begin(self, step: int, data_iterator: Any) -> Any:
        """Read from the iterator itself."""
        return data_iterator

    def should_run_forward_backward(self, data_iterator: Any) -> bool:
        """Say yes, then no, in turns."""
        self._run = not self._run
        return self._run

    def should_checkpoint_and_exit(self) -> tuple[bool, bool, int]:
        """Go on."""
        return False, False, 0

    @contextmanager
    def discarding(self, data_iterator: Any) -> Iterator[None]:
        """Do nothing."""
        yield

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Do nothing."""
        yield
