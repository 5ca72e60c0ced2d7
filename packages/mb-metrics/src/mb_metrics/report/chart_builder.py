"""Selection of the charts of a page: recorded metrics grouped by quantity, with the curves and marks of every run."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from mb_metrics import names
from mb_metrics.report.anomalies import Anomaly
from mb_metrics.report.chart import Chart, Curve
from mb_metrics.report.formatting import duration
from mb_metrics.report.incremental_statistics import is_memory, predicted_speed
from mb_metrics.report.run_history import RunHistory
from mb_metrics.report.run_statistics import RunStatistics
from mb_metrics.report.series import Series, envelope
from mb_metrics.report.time_split import TimeSplit

_MOST_LOSSES = 12
_MOST_QUANTITIES = 3
_BINS = 40
_MOST_MARKS = 300
"""Marks of a kind; of more, some are left out at equal distances."""
_STAGE = re.compile(r"memory/(?:pp|stage)[ _-]?(\d+)/(.+)")
_RANK_METRICS: tuple[tuple[str, str, tuple[str, str], tuple[str, str]], ...] = (
    (
        "Work of the ranks per step",
        "ms",
        ("fastest rank", "straggler/work-ms-min"),
        ("slowest rank", "straggler/work-ms-max"),
    ),
    (
        "Speed of the ranks",
        "TFLOP/s",
        ("slowest rank", "straggler/tflops-min"),
        ("fastest rank", "straggler/tflops-max"),
    ),
    ("Reading data, slowest rank", "ms", ("slowest rank", "straggler/data-ms-max"), ("", "")),
)
"""Title, unit, and the curves of metrics of a straggler detector."""
_THROUGHPUT = {
    "throughput/tokens_per_sec": "Tokens per second",
    "throughput/device/tokens_per_sec": "Tokens per second and device",
    "throughput/samples_per_sec": "Sequences per second",
    "throughput/batches_per_sec": "Steps per second",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LabeledRun:
    """Run with its label, and what was computed from it."""

    run: RunHistory
    label: str
    split: TimeSplit
    statistics: RunStatistics


class ChartBuilder:
    """Builder of the charts of some runs, with at most `buckets` points per curve."""

    def __init__(self, subjects: Sequence[LabeledRun], *, buckets: int) -> None:
        self._subjects = subjects
        self._buckets = buckets

    def charts(self) -> Iterator[Chart]:
        """Yield the charts with data: losses first, then other metrics."""
        return (chart for chart in self._charts() if chart.known)

    def _charts(self) -> Iterator[Chart]:
        for number, name in enumerate(self._losses[:_MOST_LOSSES]):
            yield self._loss(name)
            if number == 0:
                yield self._difference(name)
        for name in self._validations[:_MOST_LOSSES]:
            yield self._validation(name)
        yield replace(
            self._chart("Learning rate", lambda run: run.learning_rate, from_zero=True), smooth=False
        )
        yield self._chart("Gradient norm", lambda run: run.grad_norm)
        for name in self._others[:_MOST_LOSSES]:
            yield self._metric(name, name)
        yield from self._throughput()
        yield from self._memory()
        yield from self._ranks()
        yield self._waits("save", "Checkpoint stalls")
        yield self._waits("evaluation", "Time of evaluations")
        for name, title in ((names.BATCH_SIZE, "Batch size"), (names.LOSS_SCALE, "Loss scale")):
            if any(_changes(subject.run.series.get(name)) for subject in self._subjects):
                yield replace(self._metric(name, title, from_zero=True), smooth=False)
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
            *self._others[_MOST_LOSSES:],
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
    def _others(self) -> list[str]:
        """Metrics of the user without a group that are no losses, such as an accuracy."""
        shown = {*self._losses, *self._validations}
        recorded = (name for subject in self._subjects for name in subject.run.series)
        return [name for name in dict.fromkeys(recorded) if names.is_averaged(name) and name not in shown]

    @property
    def _quantities(self) -> list[str]:
        """Memory metrics, with maximum reserved and maximum allocated memory first."""
        quantities = dict.fromkeys(
            _quantity(name) for subject in self._subjects for name in subject.run.series if is_memory(name)
        )
        return sorted(quantities, key=lambda name: ("max-reserved" not in name, "max-allocated" not in name))

    def _loss(self, name: str) -> Chart:
        if len(self._subjects) > 1:
            return self._metric(name, name)
        (subject,) = self._subjects
        validation = subject.run.validation
        held_out = validation.get(names.find_validation(name, validation) or "")
        curves = [self._curve("training", 0, subject.run.series[name])]
        curves += [self._curve("validation", 1, held_out, dots=True)] if held_out else []
        return Chart(title=name, curves=curves)

    def _difference(self, name: str) -> Chart:
        """Return the difference of a loss from that of the first run, at the steps that both recorded."""
        first, *others = self._subjects
        base = dict(first.run.series.get(name) or ())
        curves = []
        for number, subject in enumerate(others, start=1):
            recorded = subject.run.series.get(name) or ()
            difference = Series.of((step, value - base[step]) for step, value in recorded if step in base)
            curves.append(self._curve(subject.label, number, difference, run=number))
        return Chart(title=f"{name}: difference from {first.label}", curves=curves, log_button=False)

    def _validation(self, name: str) -> Chart:
        return self._chart(f"{name} on validation data", lambda run: run.validation.get(name), dots=True)

    def _metric(self, name: str, title: str, *, unit: str = "", from_zero: bool = False) -> Chart:
        return self._chart(title, lambda run: run.series.get(name), unit=unit, from_zero=from_zero)

    def _throughput(self) -> Iterator[Chart]:
        for name, title in _THROUGHPUT.items():
            if any(name in subject.run.series for subject in self._subjects):
                chart = replace(self._metric(name, title, from_zero=True), note=self._window_note())
                yield self._with_prediction(chart, name)
                break
        yield self._metric(names.TFLOPS_PER_DEVICE, "Model TFLOP/s per device", from_zero=True)
        yield self._chart(
            "MFU",
            lambda run: _scaled(run.series.get(names.MFU), 100),
            unit="% of the stated peak",
            from_zero=True,
        )

    def _window_note(self) -> str:
        """Return a sentence if the rates are means of other steps than the step time, TFLOP/s and MFU."""
        windows = [subject.run.series.get(names.THROUGHPUT_WINDOW) for subject in self._subjects]
        longest = max((max(window.values) for window in windows if window), default=None)
        if longest is None:
            return ""
        return f"Mean of up to {longest:,.0f} steps; TFLOP/s and MFU are those of a log interval."

    def _with_prediction(self, chart: Chart, name: str) -> Chart:
        """Add the throughput that was predicted for each run, over all devices or for one as the metric is."""
        curves = list(chart.curves)
        for curve in chart.curves:
            run = self._subjects[curve.run].run
            predicted, buckets = predicted_speed(run.events), curve.shape.buckets
            world_size = run.series.get(names.WORLD_SIZE)
            devices = 1.0 if "device" in name else world_size.last if world_size else None
            if predicted is None or devices is None or not buckets:
                continue
            ends = (int(buckets[0].step), int(buckets[-1].step))
            line = Series.of((step, predicted * devices) for step in ends)
            curves.append(
                Curve(
                    label="predicted" if len(self._subjects) == 1 else f"{curve.label}, predicted",
                    colour=curve.colour,
                    shape=envelope(line, buckets=2),
                    run=curve.run,
                    reference=True,
                )
            )
        return replace(chart, curves=curves)

    def _ranks(self) -> Iterator[Chart]:
        """Yield the spread over ranks, as a straggler detector recorded it."""
        for title, unit, fastest, slowest in _RANK_METRICS:
            for number, subject in enumerate(self._subjects):
                recorded = (
                    (label, subject.run.series.get(name)) for label, name in (fastest, slowest) if name
                )
                curves = [
                    self._curve(label, colour, series, run=number)
                    for colour, (label, series) in enumerate(recorded)
                    if series
                ]
                of_run = "" if len(self._subjects) == 1 else f", {subject.label}"
                yield Chart(
                    title=f"{title}{of_run}", curves=curves, unit=unit, from_zero=True, fill=len(curves) == 2
                )

    def _memory(self) -> Iterator[Chart]:
        """Yield one chart per memory metric, with one curve per stage if stages are recorded separately."""
        for quantity in self._quantities[:_MOST_QUANTITIES]:
            curves: list[Curve] = []
            for number, subject in enumerate(self._subjects):
                for name, series in subject.run.series.items():
                    if is_memory(name) and _quantity(name) == quantity:
                        stage = _STAGE.fullmatch(name)
                        label = f"stage {stage[1]}" if stage else "all stages"
                        alone = len(self._subjects) == 1
                        label = label if alone else f"{subject.label}, {label}"
                        curves.append(self._curve(label, len(curves), series, run=number))
            unit = "GiB" if "gib" in quantity else ""
            yield Chart(title=f"Memory: {quantity}", curves=curves, unit=unit, from_zero=True)

    def _waits(self, kind: str, title: str) -> Chart:
        curves = []
        for number, subject in enumerate(self._subjects):
            series = Series()
            for span in subject.split.waits:
                if (
                    span.kind == kind
                    and span.step is not None
                    and (not len(series) or span.step > series.steps[-1])
                ):
                    series.append(span.step, span.seconds)
            curves.append(self._curve(subject.label, number, series, run=number, dots=True))
        return Chart(title=title, curves=curves, unit="s", from_zero=True)

    def _histogram(self) -> Chart:
        """Return the histogram of step times in microseconds; the last bin contains the slowest 0.5 % of the steps."""
        by_run = [subject.split.step_seconds for subject in self._subjects]
        ordered = sorted(seconds for of_run in by_run for seconds in of_run)
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
                Curve(
                    label=subject.label, colour=colour, shape=envelope(series, buckets=4 * _BINS), run=colour
                )
            )
        return Chart(
            title="Step time",
            unit="% of steps",
            curves=curves,
            from_zero=True,
            note="The last bin contains the slowest 0.5 % of the steps."
            if ordered[-1] > high + width
            else "",
            x="microseconds",
            log_button=False,
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
        curves = [
            self._curve(subject.label, number, series, run=number, dots=dots)
            for number, subject in enumerate(self._subjects)
            if (series := find(subject.run))
        ]
        return Chart(title=title, curves=curves, unit=unit, from_zero=from_zero)

    def _curve(self, label: str, colour: int, series: Series, *, run: int = 0, dots: bool = False) -> Curve:
        shape = envelope(series, buckets=self._buckets)
        return Curve(label=label, colour=colour, shape=shape, run=run, dots=dots)


def _quantity(name: str) -> str:
    stage = _STAGE.fullmatch(name)
    return stage[2] if stage else name.removeprefix("memory/")


def _scaled(series: Series | None, factor: float) -> Series | None:
    return None if series is None else Series.of((step, factor * value) for step, value in series)


def _changes(series: Series | None) -> bool:
    return series is not None and len(series) > 0 and min(series.values) != max(series.values)


def chart_marks(run: RunHistory, anomalies: Sequence[Anomaly], number: int) -> list[dict[str, object]]:
    """Return the marks of the run with a number as data for the script: kind, step and text."""
    marks: list[dict[str, object]] = []
    for kind, moments in (
        ("restart", _events(run, ("resume", "restart"), "resumed")),
        ("save", _events(run, ("save",), "checkpoint saved")),
        ("evaluation", ((evaluation.step, "evaluated") for evaluation in run.evaluations)),
        ("anomaly", ((anomaly.step, anomaly.text) for anomaly in anomalies)),
    ):
        marks += [
            {"run": number, "kind": kind, "step": step, "text": text} for step, text in _thinned([*moments])
        ]
    return marks


def _events(run: RunHistory, kinds: Sequence[str], text: str) -> Iterator[tuple[int, str]]:
    for event in run.events:
        if event.kind in kinds and event.step is not None:
            took = "" if event.seconds is None else f", {duration(event.seconds)}"
            yield event.step, f"{text}{took}"


def _thinned(moments: Sequence[tuple[int, str]]) -> Iterable[tuple[int, str]]:
    return moments[:: max(1, -(-len(moments) // _MOST_MARKS))]
