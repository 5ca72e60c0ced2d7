"""Selection of the charts of a page: recorded metrics grouped by quantity, each with the curves of every run."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from mb_metrics import names
from mb_metrics.report.chart import Chart, Curve
from mb_metrics.report.formatting import duration
from mb_metrics.report.run_history import RunHistory
from mb_metrics.report.run_statistics import is_memory
from mb_metrics.report.series import Series, envelope
from mb_metrics.report.time_split import TimeSplit

_MOST_LOSSES = 12
_MOST_QUANTITIES = 3
_BINS = 40
_STAGE = re.compile(r"memory/(?:pp|stage)[ _-]?(\d+)/(.+)")
_THROUGHPUT = {
    "throughput/tokens_per_sec": "Tokens per second",
    "throughput/device/tokens_per_sec": "Tokens per second and device",
    "throughput/samples_per_sec": "Sequences per second",
    "throughput/batches_per_sec": "Steps per second",
}


@dataclass(frozen=True, slots=True)
class LabeledRun:
    """Run with its time split and its label."""

    run: RunHistory
    split: TimeSplit
    label: str


@dataclass(frozen=True, slots=True)
class _ChartLine:
    label: str
    colour: int
    series: Series
    dots: bool = False


class ChartBuilder:
    """Builder of the charts of some runs, with at most `buckets` points per curve."""

    def __init__(self, subjects: Sequence[LabeledRun], *, buckets: int) -> None:
        self._subjects = subjects
        self._buckets = buckets

    def charts(self) -> Iterator[Chart]:
        """Yield the charts: losses first, then other metrics. A chart without data renders as empty."""
        for name in self._losses[:_MOST_LOSSES]:
            yield self._loss(name)
        for name in self._validations[:_MOST_LOSSES]:
            yield self._validation(name)
        yield self._chart("Learning rate", lambda run: run.learning_rate, from_zero=True)
        yield self._chart("Gradient norm", lambda run: run.grad_norm)
        yield from self._throughput()
        yield from self._memory()
        yield self._waits("save", "Checkpoint stalls")
        yield self._waits("evaluation", "Time of evaluations")
        for name, title in ((names.BATCH_SIZE, "Batch size"), (names.LOSS_SCALE, "Loss scale")):
            if any(_changes(subject.run.series.get(name)) for subject in self._subjects):
                yield self._metric(name, title, from_zero=True)
        yield self._metric(names.NUM_ZEROS, "Zeros in the gradient", from_zero=True)
        yield self._metric(names.PARAMS_NORM, "Norm of the parameters")
        yield self._metric(names.MAX_ATTENTION_LOGIT, "Largest attention logit")
        yield self._metric(names.POWER, "Power per GPU", unit="W", from_zero=True)
        yield self._histogram()

    @property
    def left_out(self) -> tuple[str, ...]:
        """Names of recorded metrics that exceed the maximum number of charts."""
        return (
            *self._losses[_MOST_LOSSES:],
            *(f"{name} on validation data" for name in self._validations[_MOST_LOSSES:]),
            *(f"memory: {name}" for name in self._quantities[_MOST_QUANTITIES:]),
        )

    @property
    def _losses(self) -> list[str]:
        return list(dict.fromkeys(name for subject in self._subjects for name in subject.run.losses))

    @property
    def _validations(self) -> list[str]:
        return list(dict.fromkeys(name for subject in self._subjects for name in subject.run.validation))

    @property
    def _quantities(self) -> list[str]:
        """Memory metrics, with maximum reserved and maximum allocated memory first."""
        found = dict.fromkeys(
            _quantity(name) for subject in self._subjects for name in subject.run.series if is_memory(name)
        )
        return sorted(found, key=lambda name: ("max-reserved" not in name, "max-allocated" not in name))

    def _loss(self, name: str) -> Chart:
        lines = self._lines(lambda run: run.series.get(name))
        if len(self._subjects) == 1:
            validation = self._subjects[0].run.validation
            held_out = validation.get(names.find_validation(name, validation) or "")
            lines = [_ChartLine("training", 0, line.series) for line in lines]
            lines += [_ChartLine("validation", 1, held_out, dots=True)] if held_out else []
        return self._build_chart(name, lines)

    def _validation(self, name: str) -> Chart:
        return self._chart(f"{name} on validation data", lambda run: run.validation.get(name), dots=True)

    def _metric(self, name: str, title: str, *, unit: str = "", from_zero: bool = False) -> Chart:
        return self._chart(title, lambda run: run.series.get(name), unit=unit, from_zero=from_zero)

    def _throughput(self) -> Iterator[Chart]:
        for name, title in _THROUGHPUT.items():
            if any(name in subject.run.series for subject in self._subjects):
                yield self._metric(name, title, from_zero=True)
                break
        yield self._metric(names.TFLOPS_PER_DEVICE, "Model TFLOP/s per device", from_zero=True)
        yield self._chart(
            "MFU",
            lambda run: _scaled(run.series.get(names.MFU), 100),
            unit="% of the stated peak",
            from_zero=True,
        )

    def _memory(self) -> Iterator[Chart]:
        """Yield one chart per memory metric, with one curve per stage if stages are recorded separately."""
        for quantity in self._quantities[:_MOST_QUANTITIES]:
            lines: list[_ChartLine] = []
            for subject in self._subjects:
                for name, series in subject.run.series.items():
                    if is_memory(name) and _quantity(name) == quantity:
                        stage = _STAGE.fullmatch(name)
                        label = f"stage {stage[1]}" if stage else "all stages"
                        alone = len(self._subjects) == 1
                        lines.append(
                            _ChartLine(label if alone else f"{subject.label}, {label}", len(lines), series)
                        )
            yield self._build_chart(
                f"Memory: {quantity}", lines, unit="GiB" if "gib" in quantity else "", from_zero=True
            )

    def _waits(self, kind: str, title: str) -> Chart:
        lines = []
        for colour, subject in enumerate(self._subjects):
            series = Series()
            for span in subject.split.waits:
                if (
                    span.kind == kind
                    and span.step is not None
                    and (not len(series) or span.step > series.steps[-1])
                ):
                    series.append(span.step, span.seconds)
            lines.append(_ChartLine(subject.label, colour, series, dots=True))
        return self._build_chart(title, lines, unit="s", from_zero=True)

    def _histogram(self) -> Chart:
        """Return the histogram of step times in microseconds; the last bin contains the slowest 0.5 % of the steps."""
        known = [subject.split.step_seconds for subject in self._subjects]
        ordered = sorted(seconds for one in known for seconds in one)
        if len(ordered) < 2:
            return Chart(title="", curves=())
        low, high = ordered[0], ordered[min(len(ordered) - 1, int(0.995 * len(ordered)))]
        width = max((high - low) / _BINS, 1e-5)
        curves = []
        for colour, subject in enumerate(self._subjects):
            counts = [0] * (_BINS + 1)
            for seconds in subject.split.step_seconds:
                counts[min(_BINS, int((seconds - low) / width))] += 1
            series = Series()
            for index, count in enumerate(counts):
                share = 100 * count / max(1, len(subject.split.step_seconds))
                for edge in (index, index + 1):
                    series.append(round(1e6 * (low + edge * width)) + (edge == index), share)
            curves.append(
                Curve(label=subject.label, colour=colour, shape=envelope(series, buckets=4 * _BINS))
            )
        return Chart(
            title="Step time",
            unit="% of steps",
            curves=curves,
            from_zero=True,
            note="The last bin contains the slowest 0.5 % of the steps."
            if ordered[-1] > high + width
            else "",
            x_name="microseconds",
            x_format=lambda microseconds: duration(microseconds / 1e6),
        )

    def _chart(
        self,
        title: str,
        find: Callable[[RunHistory], Series | None],
        *,
        dots: bool = False,
        unit: str = "",
        from_zero: bool = False,
    ) -> Chart:
        return self._build_chart(title, self._lines(find, dots=dots), unit=unit, from_zero=from_zero)

    def _lines(self, find: Callable[[RunHistory], Series | None], *, dots: bool = False) -> list[_ChartLine]:
        found = [(number, subject.label, find(subject.run)) for number, subject in enumerate(self._subjects)]
        return [_ChartLine(label, number, series, dots) for number, label, series in found if series]

    def _build_chart(
        self, title: str, lines: Sequence[_ChartLine], *, unit: str = "", from_zero: bool = False
    ) -> Chart:
        curves = [
            Curve(
                label=line.label,
                colour=line.colour,
                shape=envelope(line.series, buckets=self._buckets),
                dots=line.dots,
            )
            for line in lines
        ]
        return Chart(
            title=title, unit=unit, curves=curves, from_zero=from_zero, legend=len(self._subjects) > 1
        )


def _quantity(name: str) -> str:
    stage = _STAGE.fullmatch(name)
    return stage[2] if stage else name.removeprefix("memory/")


def _scaled(series: Series | None, factor: float) -> Series | None:
    if series is None:
        return None
    scaled = Series()
    for step, value in series:
        scaled.append(step, factor * value)
    return scaled


def _changes(series: Series | None) -> bool:
    return series is not None and len(series) > 0 and min(series.values) != max(series.values)
