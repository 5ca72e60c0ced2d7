"""What a sink is, and how records reach several of them although one fails."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from mb_metrics.record import Evaluation, LogInterval, MetricsRow
from mb_metrics.redact import hide_in_text

_logger = logging.getLogger(__name__)


class Sink(Protocol):
    """Where records go.

    A class of one's own may inherit from this one and define only what it wants to see. Methods are called from
    one thread (the one that records, or a `BackgroundSink`'s), in the order of the steps, and never after `close`.
    """

    def write_rows(self, rows: Sequence[MetricsRow]) -> None:
        """Take the next steps: every step comes once, ascending, some at a time."""

    def write_interval(self, interval: LogInterval) -> None:
        """Take the summary of a log interval, after its rows."""

    def write_evaluation(self, evaluation: Evaluation) -> None:
        """Take an evaluation, after the rows of the steps before it."""

    def close(self) -> None:
        """Write out what is held back and let go of files."""


@runtime_checkable
class FileSink(Protocol):
    """A sink that also keeps files (checkpoints, say)."""

    def write_file(self, path: Path, name: str) -> None:
        """Keep a file, or a folder with all that is in it, under a name."""


@runtime_checkable
class StatusSink(Protocol):
    """A sink that shows how a run ended."""

    def fail(self) -> None:
        """Learn that the run was ended by an error; `close` follows."""


@runtime_checkable
class _WrappingSink(Protocol):
    @property
    def inner(self) -> Sink: ...


def sink_name(sink: Sink) -> str:
    """Return what a sink is called in messages: its class, or that of the sink that it wraps."""
    return sink_name(sink.inner) if isinstance(sink, _WrappingSink) else type(sink).__name__


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkFailure:
    """How often a sink raised, what it raised first, and what was lost."""

    sink: Sink
    count: int
    """How often it raised."""
    first: Exception | None
    """What it raised first; None: it was only too slow."""
    dropped: int | None = None
    """Steps and evaluations that never reached it; None: the sink itself knows (it raised, and was asked once)."""

    def __str__(self) -> str:
        """Return one line, without secrets."""
        parts = []
        if self.first is not None:
            times = "once" if self.count == 1 else f"{self.count} times"
            parts.append(f"failed {times}, first with {hide_in_text(repr(self.first))}")
        if self.dropped is not None:
            parts.append(f"{self.dropped or 'no'} steps, evaluations or files were dropped")
        return f"{sink_name(self.sink)}: {'; '.join(parts)}"


@runtime_checkable
class _FailureReporter(Protocol):
    @property
    def failures(self) -> tuple[SinkFailure, ...]: ...


class FanOutSink:
    """Several sinks as one, none of which can end the run or keep a record from the others.

    What a sink raises is counted; it is asked again at the next record. `close` logs a line for each sink that
    failed.
    """

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self._sinks = tuple(sinks)
        self._failures: dict[int, SinkFailure] = {}

    def __len__(self) -> int:
        """Return how many sinks there are."""
        return len(self._sinks)

    @property
    def failures(self) -> tuple[SinkFailure, ...]:
        """The sinks that failed so far; those that work in the background tell of themselves."""
        reported = [
            failure for sink in self._sinks if isinstance(sink, _FailureReporter) for failure in sink.failures
        ]
        return (*self._failures.values(), *reported)

    def write_rows(self, rows: Sequence[MetricsRow]) -> None:
        """Pass on the next steps."""
        self._each(lambda sink: sink.write_rows(rows))

    def write_interval(self, interval: LogInterval) -> None:
        """Pass on the summary of a log interval."""
        self._each(lambda sink: sink.write_interval(interval))

    def write_evaluation(self, evaluation: Evaluation) -> None:
        """Pass on an evaluation."""
        self._each(lambda sink: sink.write_evaluation(evaluation))

    def write_file(self, path: Path, name: str) -> None:
        """Pass on a file to the sinks that keep files."""
        self._each(lambda sink: sink.write_file(path, name) if isinstance(sink, FileSink) else None)

    def fail(self) -> None:
        """Tell the sinks that show it that the run was ended by an error."""
        self._each(lambda sink: sink.fail() if isinstance(sink, StatusSink) else None)

    def close(self) -> None:
        """Close every sink, then log what failed."""
        self._each(lambda sink: sink.close())
        for failure in self.failures:
            _logger.error("metrics: %s", failure)

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
