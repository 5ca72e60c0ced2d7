"""Sink that forwards a subset of the steps and metrics to another sink."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from mb_metrics.names import PERPLEXITY, VALIDATION
from mb_metrics.recorder.record import Evaluation, LogInterval, MetricsRow
from mb_metrics.sinks.sink import FileSink, Sink, StatusSink, sink_list


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
