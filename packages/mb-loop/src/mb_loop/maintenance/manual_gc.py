"""Garbage collection on a schedule, so that all ranks pause at the same step.

Python's collector would otherwise start at a different moment on each rank, and every such pause delays all ranks at
the next collective.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mb_loop.errors import LoopError
from mb_loop.settings import TrainSettings


class ManualGCError(LoopError, ValueError):
    """The collection interval is negative."""


class ManualGC:
    """Scheduled garbage collection during one run; does nothing unless `train.manual_gc` is set.

    Args:
        settings: manual_gc, manual_gc_interval (steps), manual_gc_eval.
        collect: runs one collection of the given generation.

    Raises:
        ManualGCError: the interval is negative.
    """

    def __init__(self, settings: TrainSettings, *, collect: Callable[[int], object] = gc.collect) -> None:
        if settings.manual_gc and settings.manual_gc_interval < 0:
            raise ManualGCError(
                f"train.manual_gc_interval: {settings.manual_gc_interval} is negative, so no step is a multiple "
                "of it. Use 0 (only around evaluations) or a number of steps."
            )
        self._manual = settings.manual_gc
        self.interval = settings.manual_gc_interval if settings.manual_gc else 0
        """Steps between two collections; 0: none between steps."""
        self._around_evaluation = settings.manual_gc and bool(settings.manual_gc_eval)
        self._collect = collect

    @contextmanager
    def managed(self) -> Iterator[None]:
        """Disable automatic collection within the block and restore the previous state on exit."""
        if not self._manual:
            yield
            return
        was_automatic = gc.isenabled()
        gc.disable()
        self._collect(2)
        try:
            yield
        finally:
            if was_automatic:
                gc.enable()

    def collect(self, _step: int) -> None:
        """Collect all generations."""
        self._collect(2)

    @contextmanager
    def around_evaluation(self) -> Iterator[None]:
        """Collect all generations before an evaluation, and the youngest generation after it."""
        if self._around_evaluation:
            self._collect(2)
        yield
        if self._around_evaluation:
            self._collect(0)
