"""What a sink is, and how records reach several of them although one fails."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from mb_metrics.record import Evaluation, Interval, Row

_logger = logging.getLogger(__name__)


class Sink(Protocol):
    """Where records go.

    A class of one's own may inherit from this one and define only what it wants to see. Methods are called from
    the thread that records, in the order of the steps, and never after `close`.
    """

    def write_rows(self, rows: Sequence[Row]) -> None:
        """Take the next steps: every step comes once, ascending, some at a time."""

    def write_interval(self, interval: Interval) -> None:
        """Take the summary of a log interval, after its rows."""

    def write_evaluation(self, evaluation: Evaluation) -> None:
        """Take an evaluation, after the rows of the steps before it."""

    def close(self) -> None:
        """Write out what is held back and let go of files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkFailure:
    """How often a sink raised, and what it raised first."""

    sink: Sink
    count: int
    first: Exception

    def __str__(self) -> str:
        times = "once" if self.count == 1 else f"{self.count} times"
        return f"{type(self.sink).__name__} failed {times}, first with {self.first!r}"


class SafeSinks:
    """Several sinks as one, none of which can end the run or keep a record from the others.

    What a sink raises is counted; it is asked again at the next record. `close` logs one error for each
    sink that failed.
    """

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self._sinks = tuple(sinks)
        self._failures: dict[int, SinkFailure] = {}

    def __len__(self) -> int:
        return len(self._sinks)

    @property
    def failures(self) -> tuple[SinkFailure, ...]:
        """The sinks that failed so far."""
        return tuple(self._failures.values())

    def write_rows(self, rows: Sequence[Row]) -> None:
        """Pass on the next steps."""
        self._each(lambda sink: sink.write_rows(rows))

    def write_interval(self, interval: Interval) -> None:
        """Pass on the summary of a log interval."""
        self._each(lambda sink: sink.write_interval(interval))

    def write_evaluation(self, evaluation: Evaluation) -> None:
        """Pass on an evaluation."""
        self._each(lambda sink: sink.write_evaluation(evaluation))

    def close(self) -> None:
        """Close every sink, then log what failed."""
        self._each(lambda sink: sink.close())
        for failure in self.failures:
            _logger.error("metrics were lost: %s", failure)

    def _each(self, action: Callable[[Sink], None]) -> None:
        for index, sink in enumerate(self._sinks):
            try:
                action(sink)
            except Exception as error:  # noqa: BLE001 - a metric is never worth a training run
                before = self._failures.get(index)
                self._failures[index] = SinkFailure(
                    sink=sink,
                    count=before.count + 1 if before else 1,
                    first=before.first if before else error,
                )
