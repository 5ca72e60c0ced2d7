"""A sink that passes on some steps and some metrics."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from mb_metrics.names import PERPLEXITY, VALIDATION
from mb_metrics.record import Evaluation, LogInterval, MetricsRow
from mb_metrics.sink import FileSink, Sink, StatusSink


class FilterSink:
    """Passes on every so many steps, and of each the metrics that are wanted.

    Args:
        sink: Where they go.
        every: Steps between rows. What is measured at the end of a log interval only (rates, memory, times) is passed
            on where that step is due, too.
        keep: Which metrics, by name; None: all.

    Raises:
        ValueError: `every` is not positive.
    """

    def __init__(self, sink: Sink, *, every: int = 1, keep: Callable[[str], bool] | None = None) -> None:
        if every <= 0:
            raise ValueError(f"FilterSink: every={every} divides the step. Set it to 1 or more.")
        self._sink = sink
        self._every = every
        self._keep = keep or (lambda name: True)

    @property
    def inner(self) -> Sink:
        """The sink that it passes on to."""
        return self._sink

    def write_rows(self, rows: Sequence[MetricsRow]) -> None:
        """Pass on the rows that are due."""
        due = [row for row in rows if row.step % self._every == 0]
        if due:
            self._sink.write_rows([replace(row, values=self._kept(row)) for row in due])

    def write_interval(self, interval: LogInterval) -> None:
        """Pass on a summary as it is."""
        self._sink.write_interval(interval)

    def write_evaluation(self, evaluation: Evaluation) -> None:
        """Pass on an evaluation, with the losses and perplexities that are wanted."""
        keep = self._keep
        losses = {name: loss for name, loss in evaluation.losses.items() if keep(name + VALIDATION)}
        perplexities = evaluation.perplexities and any(keep(name + PERPLEXITY) for name in losses)
        if losses:
            self._sink.write_evaluation(replace(evaluation, losses=losses, perplexities=perplexities))

    def write_file(self, path: Path, name: str) -> None:
        """Pass on a file, if the sink keeps files."""
        if isinstance(self._sink, FileSink):
            self._sink.write_file(path, name)

    def fail(self) -> None:
        """Pass on that the run was ended by an error, if the sink shows it."""
        if isinstance(self._sink, StatusSink):
            self._sink.fail()

    def close(self) -> None:
        """Close the sink."""
        self._sink.close()

    def _kept(self, row: MetricsRow) -> dict[str, float]:
        return {name: value for name, value in row.values.items() if self._keep(name)}
