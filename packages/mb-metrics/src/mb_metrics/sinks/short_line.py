"""Console output in one short line per log interval, for any training loop."""

from collections.abc import Collection, Iterator
from itertools import islice

from mb_metrics import names
from mb_metrics.recorder.record import Evaluation, LogInterval, perplexity
from mb_metrics.report.formatting import duration, short

COLUMNS = 120
"""Maximum length of a line."""
_SEPARATOR = " | "


def short_line(
    interval: LogInterval,
    *,
    throughput: bool = False,
    losses: Collection[str] | None = None,
    learning_rate: str | None = None,
) -> str:
    """Return the step, losses, learning rate, speed and other recorded metrics of an interval.

    Losses are means over the interval, other metrics their newest values. What was not recorded is omitted. Metrics
    that exceed the length of the line are counted at its end.
    """
    latest = interval.latest
    rate = learning_rate or names.find_learning_rate(latest)
    means = interval.means(names.is_averaged if losses is None else losses.__contains__)
    total = "" if interval.total_steps is None else f"/{interval.total_steps}"
    shown = {**means, **({rate: latest[rate]} if rate in latest else {})}
    others = {
        name: value
        for name, value in latest.items()
        if name not in shown and name not in names.ADDED_BY_METRICS and not names.is_averaged(name)
    }
    pieces = [f"step {interval.last.step}{total}", *_named(shown), *_problems(interval)]
    return fitted([*pieces, *_speed(interval, throughput=throughput), *_named(others)])


def short_evaluation_line(evaluation: Evaluation) -> str:
    """Return the step, the validation losses and their perplexities of an evaluation."""
    pieces = [f"step {evaluation.step}"]
    for name, loss in evaluation.losses.items():
        pieces.append(f"{name} {short(loss)} on validation data")
        if evaluation.perplexities and names.is_loss(name):
            pieces.append(f"perplexity {short(perplexity(loss))}")
    return fitted(pieces)


def fitted(pieces: Collection[str]) -> str:
    """Join as many of the first pieces as a line holds, and the number of the others."""
    for count in range(len(pieces), 0, -1):
        more = [f"+{len(pieces) - count} more"] if count < len(pieces) else []
        line = _SEPARATOR.join([*islice(pieces, count), *more])
        if len(line) <= COLUMNS:
            return line
    return f"+{len(pieces)} more"


def _named(values: dict[str, float]) -> Iterator[str]:
    return (f"{name} {short(value)}" for name, value in values.items())


def _problems(interval: LogInterval) -> Iterator[str]:
    if interval.skipped_steps:
        yield f"skipped {interval.skipped_steps}"
    if interval.nonfinite_steps:
        yield f"NaN or infinite {interval.nonfinite_steps}"


def _speed(interval: LogInterval, *, throughput: bool) -> Iterator[str]:
    rates = interval.rates
    yield f"{duration(rates.step_seconds)}/step"
    if rates.tokens_per_second is not None:
        yield f"{short(rates.tokens_per_second)} tok/s"
    if throughput and rates.tflops_per_device is not None:
        yield f"{short(rates.tflops_per_device)} TFLOP/s/device"
    if rates.mfu is not None:
        yield f"MFU {100 * rates.mfu:.1f}%"
    if interval.seconds_left is not None:
        yield f"{duration(interval.seconds_left)} left"
