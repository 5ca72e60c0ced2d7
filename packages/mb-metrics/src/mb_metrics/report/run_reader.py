"""Reader for a run folder or a metrics file, once or incrementally while it grows."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median

from mb_metrics.errors import MetricsError
from mb_metrics.names import CONSUMED_SAMPLES, PERPLEXITY, VALIDATION
from mb_metrics.parse.log import LogFormat, ParsedLog, read_log, timed
from mb_metrics.parse.log_lines import without_colours
from mb_metrics.recorder.record import Evaluation, MetricsRow
from mb_metrics.redact import hide_in_settings, hide_in_text
from mb_metrics.report.metric_names import MetricNames
from mb_metrics.report.run_history import RunBuilder, RunHistory
from mb_metrics.report.run_settings import RunConfiguration
from mb_metrics.report.series import Series
from mb_metrics.run.events import RunEvent, parse_event, time_of_row
from mb_metrics.run.folder import CONFIG, EVENTS, LOG, METRICS
from mb_metrics.sinks.jsonl import FAILED, FINISHED, RESUMED, STOPPED, end_of_run
from mb_schema.json_rows import number_of, parse_row, step_of_row

_TRAIN_ITERS = re.compile(r"^\s*train_iters:\s*(\d{1,18})\s*$", re.MULTILINE)
_WARNING = re.compile(r"\bwarning\b\s*:|\b\w*Warning:|\bWARNING\b")
_MOST_WARNINGS = 50
_MOST_SUGGESTIONS = 10
_USUAL_STEPS = 20
"""Steps before a restart whose median time is the usual one."""


class RunNotFoundError(MetricsError, FileNotFoundError):
    """Error raised when there is no run at a path."""

    bad_input = True


def read_run(
    path: str | Path,
    *,
    configuration: RunConfiguration | None = None,
    metric_names: MetricNames | None = None,
) -> RunHistory:
    """Read the data written so far in a run folder or in a single metrics file.

    The run may be in progress, killed, or before its first step. Lines that cannot be read are counted in `notes`.

    Args:
        path: The folder or file. The metrics file of a run folder means the folder.
        configuration: Settings of the run.
        metric_names: Names of the losses and of the learning rate; None: the usual names.

    Raises:
        RunNotFoundError: the file does not exist, or the folder contains no file of a run.
        MetricNotRecordedError: metrics were recorded, and none of a requested name.
    """
    reader = RunReader(path, configuration=configuration, metric_names=metric_names)
    reader.poll()
    return reader.run()


def read_run_from_log(
    path: str | Path, *, format: LogFormat | None = None, metric_names: MetricNames | None = None
) -> RunHistory:
    """Read the log of a trainer as a run; see `parse_log` for formats and errors, `read_run` for `metric_names`."""
    return _of_parsed(read_log(path, format=format), Path(path), metric_names or MetricNames())


def folder_of_metrics(path: Path) -> Path:
    """Return the run folder of a metrics file that is in one: it has the end of the run, settings and warnings."""
    return path.parent if path.name == METRICS and path.with_name(EVENTS).is_file() else path


def _of_parsed(log: ParsedLog, path: Path, metric_names: MetricNames) -> RunHistory:
    builder = RunBuilder(metric_names)
    rows = timed(log.rows)
    for record in log.records:
        if isinstance(record, MetricsRow):
            builder.add(next(rows))
        elif isinstance(record, Evaluation):
            builder.add(record)
    counts = {"cut": log.cut_lines, "malformed": log.malformed_lines}
    notes = [
        f"{count} {what} {'line' if count == 1 else 'lines'} left out"
        for what, count in counts.items()
        if count
    ]
    return builder.history(
        name=path.stem,
        source=f"{path}, a log of {log.format}",
        events=log.events,
        rows_are_intervals=True,
        total_steps=log.total_steps,
        configuration=None,
        config_text=None,
        warnings=_log_warnings(path),
        notes=tuple(notes),
    )


class RunReader:
    """Incremental reader of the files of a run: `poll` reads new data, `run` returns the data read so far.

    Raises:
        RunNotFoundError: the file does not exist, or the folder contains no file of a run.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        configuration: RunConfiguration | None = None,
        metric_names: MetricNames | None = None,
    ) -> None:
        self._path = folder_of_metrics(Path(path))
        self._metric_names = metric_names or MetricNames()
        self._is_single_file = self._path.is_file()
        if not self._is_single_file and not _has_run(self._path):
            raise RunNotFoundError(
                f"{path}: no run found. None of {METRICS}, {EVENTS}, {CONFIG} and {LOG} exists. "
                f"{_suggestion(self._path)}"
            )
        self._configuration = configuration
        self._metrics = _FileTail(self._path if self._is_single_file else self._path / METRICS)
        self._events_file = _FileTail(self._path / EVENTS)
        self._log = _FileTail(self._path / LOG)
        self._builder = RunBuilder(self._metric_names)
        self._end: RunEvent | None = None
        self._restarts: list[RunEvent] = []
        self._events: list[RunEvent] = []
        self._warnings = _LogWarnings()
        self._damaged_rows = 0
        self._damaged_events = 0

    def poll(self) -> None:
        """Read the data written since the last call; read a file from its start if a restart rewrote it."""
        self._poll_metrics()
        if self._events_file.rewritten():
            self._events, self._damaged_events = [], 0
        for line in self._events_file.new_lines():
            event = parse_event(line)
            if event is None:
                self._damaged_events += 1
            else:
                self._events.append(event)
        if self._log.rewritten():
            self._warnings = _LogWarnings()
        for line in self._log.new_lines():
            self._warnings.add(line.decode(errors="replace"))

    def _poll_metrics(self) -> None:
        if self._metrics.rewritten():
            self._builder, self._damaged_rows, self._end = RunBuilder(self._metric_names), 0, None
            self._restarts = []
        for line in self._metrics.new_lines():
            end, stop = _parse_end(line), self._end
            self._end = None if end is None or end.kind == "resume" else end
            if end is not None and end.kind == "resume":
                self._restarts += [*_previous_stop(end), end]
            elif end is None and not _add_line(self._builder, line):
                self._damaged_rows += 1
            elif end is None and stop is not None:
                self._restarts += _restart(stop, self._builder.times)

    def run(self) -> RunHistory:
        """Return the data read so far; its columns grow with the next `poll`.

        Raises:
            RunNotFoundError: a single file has lines, and none of them is a row of metrics.
            MetricNotRecordedError: metrics were recorded, and none of a requested name.
        """
        builder = self._builder
        empty = not len(builder.times) and not builder.evaluations
        if self._is_single_file and empty and self._damaged_rows:
            raise RunNotFoundError(
                f"{self._path}: not a metrics file. None of its {self._damaged_rows:,} lines is a JSON object with a "
                "step. Pass a run folder or its metrics.jsonl; a log of a trainer is read by `report --from-log`."
            )
        config = self._path / CONFIG
        text = config.read_text(encoding="utf-8", errors="replace") if config.is_file() else None
        train_iters = _TRAIN_ITERS.search(text or "")
        damaged = {self._metrics.name: self._damaged_rows, EVENTS: self._damaged_events}
        notes = [
            f"{count} damaged {'line' if count == 1 else 'lines'} of {name} left out"
            for name, count in damaged.items()
            if count
        ]
        if self._metrics.cut:
            notes.append("the last line is incomplete: it is being written, or the run was killed")
        mark = self._end if not self._events else None
        return builder.history(
            name=self._path.stem if self._is_single_file else self._path.resolve().name,
            source=str(self._path),
            events=tuple(self._events or [*self._restarts, *([mark] if mark else [])]),
            rows_are_intervals=False,
            total_steps=int(train_iters[1]) if train_iters else None,
            configuration=self._configuration,
            config_text=None if text is None else hide_in_settings(text),
            warnings=self._warnings.lines,
            notes=tuple(notes),
            closed=None if self._events else mark is not None,
        )


def _has_run(folder: Path) -> bool:
    return any((folder / name).exists() for name in (METRICS, EVENTS, CONFIG, LOG))


def _suggestion(folder: Path) -> str:
    """Return the paths that the user may have meant: the run folders below a folder."""
    runs = sorted(str(below) for below in folder.iterdir() if _has_run(below)) if folder.is_dir() else []
    if runs:
        more = ", ..." if len(runs) > _MOST_SUGGESTIONS else ""
        return f"Pass a run folder: {', '.join(runs[:_MOST_SUGGESTIONS])}{more}."
    return "Pass a run folder or a metrics file; a log of a trainer is read by `report --from-log`."


class _FileTail:
    """Complete lines of a growing file; `cut` is True if an incomplete line follows them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.name = path.name
        self._file: tuple[int, int] | None = None
        self._position = 0
        self._last_line = b""
        self.cut = False

    def rewritten(self) -> bool:
        """Return True if the file was replaced or truncated; it is then read from its start."""
        if not self._path.is_file():
            return False
        status = self._path.stat()
        file = status.st_dev, status.st_ino
        again = self._file is not None and (file != self._file or not self._has_last_line())
        self._file = file
        if again:
            self._position, self._last_line = 0, b""
        return again

    def _has_last_line(self) -> bool:
        """Return False if the file was cut before the last line that was read, even if it has grown since then."""
        with self._path.open("rb") as file:
            file.seek(self._position - len(self._last_line))
            return file.read(len(self._last_line)) == self._last_line

    def new_lines(self) -> Iterator[bytes]:
        """Yield the lines completed since the last call; none if the file does not exist."""
        self.cut = False
        if not self._path.is_file():
            return
        with self._path.open("rb") as file:
            file.seek(self._position)
            for line in file:
                if not line.endswith(b"\n"):
                    self.cut = True
                    return
                self._position += len(line)
                self._last_line = line
                yield line


def _parse_end(line: bytes) -> RunEvent | None:
    """Return the stop of a run, or its resume, if a line of a metrics file is a mark."""
    row = parse_row(line) if b'"end"' in line else None
    reason = None if row is None else end_of_run(row)
    if row is None or reason is None:
        return None
    is_resume = reason == RESUMED
    return RunEvent(
        kind="resume" if is_resume else "stop",
        time=time_of_row(row),
        step=step_of_row(row),
        details=row if is_resume else {"reason": reason},
    )


def _previous_stop(resume: RunEvent) -> list[RunEvent]:
    """Return the stop of the process before a resume, if that process closed the file."""
    if resume.details.get("previous_end") not in (FINISHED, STOPPED, FAILED):
        return []
    time, step = (
        time_of_row({"time": resume.details.get("previous_time")}),
        resume.details.get("previous_step"),
    )
    return [
        RunEvent(
            kind="stop", time=time, step=step if isinstance(step, int) else None, details={"reason": "closed"}
        )
    ]


def _restart(stop: RunEvent, times: Series) -> list[RunEvent]:
    """Return the stop that a mark within a file records, and the resume that the row after it shows.

    The file has no time of the resume: the usual time of a step before that row.
    """
    stamps = times.values[-_USUAL_STEPS - 2 : -1]
    usual = median(after - before for before, after in pairwise(stamps)) if len(stamps) > 1 else 0.0
    begin = max(stop.time, times.values[-1] - usual) if len(times) else stop.time
    return [
        replace(stop, details={"reason": "closed"}),
        RunEvent(kind="resume", time=begin, step=stop.step, details={}),
    ]


def _add_line(builder: RunBuilder, line: bytes) -> bool:
    """Add a line of a metrics file; return False if it is damaged."""
    row = parse_row(line)
    step = None if row is None else step_of_row(row)
    if row is None or step is None:
        return False
    time = time_of_row(row)
    skipped = bool(row.get("skipped", False))
    metrics = {name: raw for name, raw in row.items() if name not in ("step", "time", "skipped")}
    values = {name: value for name, raw in metrics.items() if (value := number_of(raw)) is not None}
    losses = {name: values.pop(name) for name in list(values) if name.endswith((VALIDATION, PERPLEXITY))}
    if losses:
        builder.add(_evaluation(step, time, losses))
    if values.keys() - {CONSUMED_SAMPLES} or not losses:
        builder.add_row(step, time, values, skipped=skipped)
    return True


def _evaluation(step: int, time: float, named: Mapping[str, float]) -> Evaluation:
    losses = {
        name.removesuffix(VALIDATION): value for name, value in named.items() if name.endswith(VALIDATION)
    }
    return Evaluation(step=step, time=time, losses=losses, consumed_samples=None)


class _LogWarnings:
    """Distinct warnings of a log with their counts."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def add(self, line: str) -> None:
        """Add a line of the log."""
        if not _WARNING.search(line):
            return
        text = hide_in_text(without_colours(line).strip())
        if text in self._counts or len(self._counts) < _MOST_WARNINGS:
            self._counts[text] = self._counts.get(text, 0) + 1

    @property
    def lines(self) -> tuple[str, ...]:
        """The first distinct warnings."""
        return tuple(
            text if count == 1 else f"{text} ({count} times)" for text, count in self._counts.items()
        )


def _log_warnings(path: Path) -> tuple[str, ...]:
    warnings = _LogWarnings()
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            warnings.add(line)
    return warnings.lines
