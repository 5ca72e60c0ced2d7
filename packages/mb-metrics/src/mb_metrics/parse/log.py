"""Parser for a complete log of a trainer, with detection of its format."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Literal, get_args

from mb_metrics import names
from mb_metrics.errors import MetricsError
from mb_metrics.parse.log_lines import SKIPPED_STEPS, LineDefect, without_colours
from mb_metrics.parse.megatron import (
    IterationLine,
    StepTimeLine,
    event_line,
    iteration_lines,
    step_time_of_line,
    validation_line,
)
from mb_metrics.parse.torchtitan import torchtitan_line
from mb_metrics.recorder.record import Evaluation, MetricsRow
from mb_metrics.run.events import RunEvent

LogFormat = Literal["mb", "megatron-lm", "megatron-bridge", "torchtitan", "cloudai"]
"""Format of a log. In "mb" the step-time line follows the iteration line that it belongs to, in "megatron-bridge" it
precedes it; "megatron-lm" has no step-time line; "cloudai" parses step-time lines only."""

LOG_FORMATS: tuple[LogFormat, ...] = get_args(LogFormat)
_LINES_TO_DETECT = 200_000

LogRecord = MetricsRow | Evaluation | RunEvent
_Parsed = IterationLine | StepTimeLine | LogRecord | LineDefect


class LogFormatError(MetricsError, ValueError):
    """Error raised when no line of a log is in a known format, or in the requested one."""

    bad_input = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedLog:
    """Records of a log, in order."""

    format: LogFormat
    records: tuple[LogRecord, ...]
    """A row represents the steps since the previous row. Steps decrease where the trainer was restarted. A time that
    the log does not contain is NaN."""
    total_steps: int | None
    """Length of the run in steps; None if the log does not contain it."""
    cut_lines: int
    """Number of lines whose end is missing."""
    malformed_lines: int
    """Number of lines with an invalid value."""

    @property
    def rows(self) -> tuple[MetricsRow, ...]:
        """Rows of the steps."""
        return tuple(record for record in self.records if isinstance(record, MetricsRow))

    @property
    def evaluations(self) -> tuple[Evaluation, ...]:
        """Validation losses."""
        return tuple(record for record in self.records if isinstance(record, Evaluation))

    @property
    def events(self) -> tuple[RunEvent, ...]:
        """Saves and resumes."""
        return tuple(record for record in self.records if isinstance(record, RunEvent))


def read_log(path: str | Path, *, format: LogFormat | None = None) -> ParsedLog:
    """Parse the log in a file with `parse_log`. Invalid UTF-8 is replaced.

    Raises:
        FileNotFoundError: the file does not exist.
        LogFormatError: see `parse_log`; the message names the file.
    """
    with Path(path).open(encoding="utf-8", errors="replace", newline="") as lines:
        try:
            return parse_log(lines, format=format)
        except LogFormatError as error:
            raise LogFormatError(f"{path}: {error}") from None


def parse_log(lines: Iterable[str], *, format: LogFormat | None = None) -> ParsedLog:
    """Parse the lines of a log of Megatron-LM, Megatron-Bridge, torchtitan or `mb`, or step-time lines only.

    Terminal colours, prefixes of ranks and hosts, and time stamps (in local time) may precede the parsed text, and
    other lines may appear in between. Defective lines are counted and do not raise.

    Args:
        lines: Lines, as an open file yields them.
        format: Format of the log; None: detected from the first lines in a known format.

    Raises:
        LogFormatError: no line could be parsed.
        ValueError: the format is unknown.
    """
    if format is not None and format not in LOG_FORMATS:
        raise ValueError(
            f"format: unknown format {format!r}. Choose one of {', '.join(LOG_FORMATS)}, or None."
        )
    source: Iterator[str] = (
        piece for line in lines for piece in without_colours(line).rstrip("\n").split("\r")
    )
    if format is None:
        head: list[str] = []
        format = _detect(source, head)
        source = chain(head, source)
    log = _LogReader(format)
    for line in source:
        log.read(line)
    return log.finished()


def _detect(source: Iterator[str], head: list[str]) -> LogFormat:
    """Return the format, and store the lines that were read in `head`."""
    step_time = iteration = False
    for line in source:
        head.append(line)
        if isinstance(torchtitan_line(line, last_step=None), MetricsRow):
            return "torchtitan"
        new_step_time = isinstance(step_time_of_line(line), StepTimeLine)
        new_iteration = any(isinstance(parsed, IterationLine) for parsed in iteration_lines(line))
        if new_iteration and step_time:
            return "megatron-bridge"
        if new_step_time and iteration:
            return "mb"
        if (new_iteration and iteration) or len(head) == _LINES_TO_DETECT:
            break
        step_time, iteration = step_time or new_step_time, iteration or new_iteration
    if iteration:
        return "megatron-lm"
    if step_time:
        return "cloudai"
    raise LogFormatError(
        f"no line of {len(head):,} is an iteration line of Megatron-LM, Megatron-Bridge or mb, a line of torchtitan, "
        'or a "Step Time" line. Pass the log of the rank that prints them: the last one in Megatron-LM, else rank 0.'
    )


class _LogReader:
    """Incremental parser of the lines of a log."""

    def __init__(self, format: LogFormat) -> None:
        self._format: LogFormat = format
        self._records: list[LogRecord] = []
        self._row: int | None = None
        self._total: int | None = None
        self._waiting: StepTimeLine | None = None
        self._counts = {LineDefect.CUT: 0, LineDefect.MALFORMED: 0}

    @property
    def _last(self) -> MetricsRow | None:
        row = None if self._row is None else self._records[self._row]
        return row if isinstance(row, MetricsRow) else None

    def read(self, line: str) -> None:
        """Parse one line."""
        for parsed in _parsed(line, self._format, self._last.step if self._last else None):
            if isinstance(parsed, LineDefect):
                self._counts[parsed] += 1
            elif isinstance(parsed, IterationLine):
                self._total = parsed.total_steps or self._total
                self._add_row(parsed.row)
            elif isinstance(parsed, StepTimeLine):
                self._add_step_time(parsed)
            elif isinstance(parsed, MetricsRow):
                self._add_row(parsed)
            else:
                self._records.append(parsed)

    def finished(self) -> ParsedLog:
        """Return the parsed log."""
        if not any(isinstance(record, MetricsRow) for record in self._records):
            raise LogFormatError(
                f"no line could be parsed as a step in the format {self._format} "
                f"({self._counts[LineDefect.CUT]} cut, {self._counts[LineDefect.MALFORMED]} malformed). "
                "Omit the format to detect it, or pass another log."
            )
        return ParsedLog(
            format=self._format,
            records=tuple(self._records),
            total_steps=self._total,
            cut_lines=self._counts[LineDefect.CUT],
            malformed_lines=self._counts[LineDefect.MALFORMED],
        )

    def _add_row(self, row: MetricsRow) -> None:
        last = self._last
        if last is not None and row.step == last.step:  # of another process
            return
        is_one_step = row.step == 1 if last is None else row.step == last.step + 1
        if is_one_step and row.values.get(SKIPPED_STEPS, 0) >= 1:
            row = replace(row, skipped=True)
        if self._waiting is not None:
            row = replace(row, values=self._waiting.values | dict(row.values))
            self._waiting = None
        self._row = len(self._records)
        self._records.append(row)

    def _add_step_time(self, line: StepTimeLine) -> None:
        if self._format == "megatron-bridge":
            self._waiting = line
        elif self._format == "cloudai":
            step = 1 if self._last is None else self._last.step + 1
            self._row = len(self._records)
            self._records.append(
                MetricsRow(
                    step=step, time=line.time, values=line.values, skipped=False, consumed_samples=None
                )
            )
        elif self._row is not None and self._last is not None:
            values = line.values | dict(self._last.values)  # values of the iteration line are more precise
            self._records[self._row] = replace(self._last, values=values)


def _parsed(line: str, format: LogFormat, last_step: int | None) -> Iterator[_Parsed]:
    """Yield what a line contains in a format; `last_step` is the step of a record that has none."""
    parsed: list[_Parsed | None] = []
    if format == "torchtitan":
        parsed.append(torchtitan_line(line, last_step=last_step))
    elif format != "cloudai":
        parsed += [*iteration_lines(line), validation_line(line, last_step=last_step), event_line(line)]
    if format in ("mb", "megatron-bridge", "cloudai"):
        parsed.append(step_time_of_line(line))
    return (each for each in parsed if each is not None)


def timed(rows: Iterable[MetricsRow]) -> Iterator[MetricsRow]:
    """Yield rows with missing times filled in from step times, starting at 0.

    Rows with a time, and rows without a step time, are unchanged.
    """
    now, last = 0.0, 0
    for row in rows:
        seconds = row.values.get(names.ITERATION_TIME, math.nan)
        now += seconds * max(row.step - last, 1) if math.isfinite(seconds) else math.nan
        last = row.step
        yield row if math.isfinite(row.time) else replace(row, time=now)
