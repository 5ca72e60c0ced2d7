"""Interface of sinks; distribution of records to several sinks with isolated failures, and selection of records."""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from mb_metrics.names import PERPLEXITY, VALIDATION
from mb_metrics.recorder.record import Evaluation, LogInterval, MetricsRow
from mb_metrics.redact import hide_in_text

_logger = logging.getLogger(__name__)


class Sink(Protocol):
    """Destination of records.

    A class may inherit from this one and override only the methods it needs; the others do nothing. The last row of an
    interval contains its rates, so that most sinks do not need `write_interval`. Methods are called from one
    thread (the recording thread, or that of a `BackgroundSink`), in the order of the steps, and never after `close`.
    """

    def write_rows(self, rows: Sequence[MetricsRow]) -> None:
        """Write the next steps. Each step is passed once, in ascending order, in batches."""
        return

    def write_interval(self, interval: LogInterval) -> None:
        """Write the summary of a log interval, after its rows."""
        return

    def write_evaluation(self, evaluation: Evaluation) -> None:
        """Write an evaluation, after the rows of the preceding steps."""
        return

    def close(self) -> None:
        """Write buffered records and release resources."""
        return


@runtime_checkable
class FileSink(Protocol):
    """Sink that also stores files, for example checkpoints."""

    def write_file(self, path: Path, name: str) -> None:
        """Store a file, or a folder with its contents, under a name."""


@runtime_checkable
class StatusSink(Protocol):
    """Sink that records the final status of a run."""

    def fail(self) -> None:
        """Mark the run as ended by an error; `close` follows."""


@runtime_checkable
class _WrappingSink(Protocol):
    @property
    def inner(self) -> Sink: ...


def sink_name(sink: Sink) -> str:
    """Return the name of a sink for messages: its class, or the class of the sink that it wraps."""
    return sink_name(sink.inner) if isinstance(sink, _WrappingSink) else type(sink).__name__


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkFailure:
    """Failures of a sink: number of errors, first error, and number of lost records."""

    sink: Sink
    count: int
    """Number of errors."""
    first: Exception | None
    """First error; None: the sink was only too slow."""
    dropped: int | None = None
    """Steps, evaluations and files that were not written; None: not counted (each call was made once)."""

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


_METHODS = ("write_rows", "write_interval", "write_evaluation", "close")


def sink_list(sinks: "Sequence[Sink] | Sink") -> Sequence[Sink]:
    """Return the sinks as a list; a single sink needs none.

    Raises:
        TypeError: an object is not a sink.
    """
    listed: Sequence[Any] = list(sinks) if isinstance(sinks, Iterable) else [sinks]
    for sink in listed:
        if isinstance(sink, type):
            raise TypeError(
                f"sinks: {sink.__name__} is a class, so it cannot write. Pass an object: {sink.__name__}(...)."
            )
        missing = [method for method in _METHODS if not hasattr(sink, method)]
        if missing:
            raise TypeError(
                f"sinks: {sink!r:.60} is not a sink, because it has no method {missing[0]}. Pass sinks such as "
                "mb_metrics.ConsoleSink(), which prints, or JsonlSink(path); let a custom one inherit from Sink."
            )
    return listed


class FanOutSink:
    """Sink that distributes records to several sinks and isolates their failures.

    An error of a sink neither ends the run nor affects the other sinks. It is counted, and the sink is called again
    for the next record. The first error of a sink is logged at once; `close` logs one line for each sink that failed.
    """

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self._sinks = tuple(sinks)
        self._failures: dict[int, SinkFailure] = {}

    def __len__(self) -> int:
        """Return the number of sinks."""
        return len(self._sinks)

    @property
    def failures(self) -> tuple[SinkFailure, ...]:
        """Failures so far, including those that background sinks report."""
        reported = [
            failure for sink in self._sinks if isinstance(sink, _FailureReporter) for failure in sink.failures
        ]
        return (*self._failures.values(), *reported)

    def write_rows(self, rows: Sequence[MetricsRow]) -> None:
        """Forward the next steps."""
        self._each(lambda sink: sink.write_rows(rows))

    def write_interval(self, interval: LogInterval) -> None:
        """Forward the summary of a log interval."""
        self._each(lambda sink: sink.write_interval(interval))

    def write_evaluation(self, evaluation: Evaluation) -> None:
        """Forward an evaluation."""
        self._each(lambda sink: sink.write_evaluation(evaluation))

    def write_file(self, path: Path, name: str) -> None:
        """Forward a file to the sinks that store files."""
        self._each(lambda sink: sink.write_file(path, name) if isinstance(sink, FileSink) else None)

    def fail(self) -> None:
        """Notify the sinks that record the status of the run that an error ended it."""
        self._each(lambda sink: sink.fail() if isinstance(sink, StatusSink) else None)

    def close(self) -> None:
        """Close every sink, then log the failures."""
        self._each(lambda sink: sink.close())
        for failure in self.failures:
            _logger.error("metrics: %s", failure)

    def _each(self, action: Callable[[Sink], None]) -> None:
        for index, sink in enumerate(self._sinks):
            try:
                action(sink)
            except Exception as error:  # noqa: BLE001 - metrics must not end a training run
                before = self._failures.get(index)
                if before is None:
                    _logger.warning(
                        "metrics: %s: failed (%s); the run continues, and the sink is called again for later records",
                        sink_name(sink),
                        hide_in_text(repr(error)),
                    )
                self._failures[index] = SinkFailure(
                    sink=sink,
                    count=before.count + 1 if before else 1,
                    first=before.first if before else error,
                )


class FilterSink:
    """Sink that forwards one row every `every` steps, with the selected metrics.

    Args:
        sink: The wrapped sink.
        every: Steps between rows. Metrics that are measured only at the end of a log interval (rates, memory, times)
            are forwarded if that step is due.
        keep: Predicate on metric names that selects metrics; None: all.

    Raises:
        TypeError: `sink` is not a sink, or `keep` not a function.
        ValueError: `every` is not positive.
    """

    def __init__(self, sink: Sink, *, every: int = 1, keep: Callable[[str], bool] | None = None) -> None:
        if every <= 0:
            raise ValueError(
                f"FilterSink: every must be positive (every={every}). Steps are divided by it. Set it to 1 or more."
            )
        if keep is not None and not callable(keep):
            raise TypeError(
                f"FilterSink: keep={keep!r:.50} is not a function. It receives the name of a metric. Pass one, "
                "such as lambda name: name == 'lm loss'."
            )
        (self.inner,) = sink_list([sink])
        self._every = every
        self._keep = keep or (lambda name: True)

    def write_rows(self, rows: Sequence[MetricsRow]) -> None:
        """Forward the rows that are due."""
        due = [row for row in rows if row.step % self._every == 0]
        if due:
            self.inner.write_rows([replace(row, values=self._kept(row)) for row in due])

    def write_interval(self, interval: LogInterval) -> None:
        """Forward a summary unchanged."""
        self.inner.write_interval(interval)

    def write_evaluation(self, evaluation: Evaluation) -> None:
        """Forward an evaluation with the selected losses and perplexities."""
        keep = self._keep
        losses = {name: loss for name, loss in evaluation.losses.items() if keep(name + VALIDATION)}
        perplexities = evaluation.perplexities and any(keep(name + PERPLEXITY) for name in losses)
        if losses:
            self.inner.write_evaluation(replace(evaluation, losses=losses, perplexities=perplexities))

    def write_file(self, path: Path, name: str) -> None:
        """Forward a file, if the sink stores files."""
        if isinstance(self.inner, FileSink):
            self.inner.write_file(path, name)

    def fail(self) -> None:
        """Forward the notification that an error ended the run, if the sink supports it."""
        if isinstance(self.inner, StatusSink):
            self.inner.fail()

    def close(self) -> None:
        """Close the sink."""
        self.inner.close()

    def _kept(self, row: MetricsRow) -> dict[str, float]:
        return {name: value for name, value in row.values.items() if self._keep(name)}
