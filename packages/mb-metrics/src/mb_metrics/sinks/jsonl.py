"""JSONL file with one JSON object per step, which a resumed run continues at its resume step."""

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mb_metrics.errors import DamagedRunFileError
from mb_metrics.names import CONSUMED_SAMPLES
from mb_metrics.recorder.record import Evaluation, LogInterval, MetricsRow
from mb_metrics.sinks.append_file import AppendFile, require_regular_file
from mb_metrics.sinks.sink import Sink
from mb_schema.files import replaced
from mb_schema.json_rows import NOT_FINITE, parse_row, plain_number, step_of_row

END = "end"
"""Key of the mark that a closed file ends with."""
FINISHED, STOPPED, FAILED = "finished", "stopped", "failed"
RESUMED = "resumed"
"""Mark in the middle of a file, before the first record of a process that continues it."""
_ENDS = (FINISHED, STOPPED, FAILED, RESUMED)
_OWN_KEYS = ("step", "time")


class JsonlSink(Sink):
    """Sink that appends one object per step and per evaluation: `step`, `time`, then each metric under its name.

    A metric called `step` or `time` is written as `metric/step` or `metric/time`.

    `time` is in seconds since the epoch; "samples vs steps" is the number of consumed samples, if known; `skipped` is
    present, and true, for a step that the optimizer skipped. JSON supports neither NaN nor infinity: they are the
    strings "NaN", "Infinity" and "-Infinity", which `read_jsonl` (or `float`) converts back.

    The rows of an interval are passed to the operating system at its end, in one write: a killed process loses at
    most the current interval. After a power failure, data in the page cache is also lost, usually up to half a minute.
    With `fsync`, every write is forced to disk, so that a power failure also loses at most the current interval.
    Without it, the file is forced to disk when it is closed. Rows that could not be written (disk full) are kept and
    written with the next ones.

    `close` appends a mark, {"step": ..., "time": ..., "end": "finished"} with the step and the time of the last record,
    "stopped" in place of "finished" before the last of `total_steps`, or "failed" if an exception ended the run.
    Readers thus know a complete file from that of a killed run. Before the first record of a process that continues a
    file, the mark is "resumed", with the time of the start, and with step, time and mark of the last line before.

    Args:
        path: The file; its folder is created.
        fsync: If True, wait for the disk after each write: milliseconds, more on a busy network file system.
        resume_step: The last step to keep: rows of later steps, which the run repeats, are dropped, and so is a line
            truncated when a previous run was killed. A step before the first one (0, or -1 if steps count from 0)
            starts an empty file; None appends to the existing file.
        end_mark: If False, `close` writes no mark: the end of the run is recorded elsewhere, such as in events.jsonl.

    Raises:
        TypeError: `resume_step` is not an integer.
        DamagedRunFileError: a line of the file, other than the last, is not a JSON object with a step, or it is
            not a file.
    """

    def __init__(
        self, path: str | Path, *, resume_step: int | None = None, fsync: bool = False, end_mark: bool = True
    ) -> None:
        if resume_step is not None and not isinstance(resume_step, int):
            raise TypeError(
                f"JsonlSink: resume_step={resume_step!r} is a {type(resume_step).__name__}. It is a number of a step. "
                "Pass an int, or None to append."
            )
        self._path = Path(path)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        require_regular_file(self._path)
        previous = read_last_row(self._path) if end_mark else None
        if self._path.exists():
            _repair(self._path, resume_step)
        self._file = AppendFile(self._path)
        self._waiting = b""
        if previous is not None and self._path.stat().st_size:
            self._waiting = _encoded([_resume_mark(previous, resume_step)])
        self._fsync = fsync
        self._end = FINISHED if end_mark else None
        self._last: MetricsRow | Evaluation | None = None
        self._total_steps: int | None = None

    def write_rows(self, rows: Sequence[MetricsRow]) -> None:
        """Write one line per step."""
        self._append([_object(row) for row in rows])
        self._last = rows[-1] if rows else self._last

    def write_interval(self, interval: LogInterval) -> None:
        """Take the length of the run, which decides how it has ended; the rows are written."""
        self._total_steps = interval.total_steps

    def write_evaluation(self, evaluation: Evaluation) -> None:
        """Write a separate line."""
        self._append([_object(evaluation)])
        self._last = evaluation

    def fail(self) -> None:
        """Mark the run as ended by an error."""
        self._end = FAILED if self._end else None

    def close(self) -> None:
        """Write the pending rows and the mark of the end, and close the file."""
        last, end = self._last, self._end
        if end == FINISHED and last is not None and last.step < (self._total_steps or 0):
            end = STOPPED
        try:
            if last is not None:
                self._append([{"step": last.step, "time": last.time, END: end}] if end else [])
            self._file.fsync()
        finally:
            self._file.close()

    def _append(self, objects: Sequence[Mapping[str, object]]) -> None:
        self._waiting += _encoded(objects)
        self._file.append(self._waiting)
        self._waiting = b""
        if self._fsync:
            self._file.fsync()


def read_jsonl(path: str | Path) -> Iterator[dict[str, float]]:
    """Yield the objects of a metrics file, with the strings for NaN and infinity converted to numbers.

    Marks of an end are omitted. An incomplete last line, from a file being written or from a killed run, is omitted.

    Raises:
        DamagedRunFileError: a line, other than the last, is not a JSON object with a step.
    """
    path = Path(path)
    for number, (line, _) in enumerate(_steps(path), start=1):
        row = _parse(line)
        if row is None:
            raise _damaged_line(path, number, line)
        if end_of_run(row) is None:
            yield {
                name: NOT_FINITE[value] if isinstance(value, str) else value for name, value in row.items()
            }


def end_of_run(row: Mapping[str, object]) -> str | None:
    """Return the reason if an object of a metrics file is the mark of an end, otherwise None."""
    end = row.get(END)
    return end if isinstance(end, str) and end in _ENDS else None


def _object(record: MetricsRow | Evaluation) -> dict[str, object]:
    line: dict[str, object] = {"step": record.step, "time": record.time}
    if record.consumed_samples is not None:
        line[CONSUMED_SAMPLES] = record.consumed_samples
    for name, value in record.values.items():
        line[f"metric/{name}" if name in _OWN_KEYS else name] = plain_number(value)
    if isinstance(record, MetricsRow) and record.skipped:
        line["skipped"] = True
    return line


def _resume_mark(previous: Mapping[str, Any], resume_step: int | None) -> dict[str, object]:
    """Return the mark of a file that is continued; `previous` is its last line before."""
    last = step_of_row(previous) or 0
    step = last if resume_step is None else min(resume_step, last)
    mark = {"step": step, "time": time.time(), END: RESUMED, "previous_step": last}
    return mark | {"previous_time": previous["time"], "previous_end": end_of_run(previous)}


def _encoded(objects: Sequence[Mapping[str, object]]) -> bytes:
    return b"".join(json.dumps(line, ensure_ascii=False).encode() + b"\n" for line in objects)


def _repair(path: Path, resume_step: int | None) -> None:
    """Remove the rows of later steps, and a truncated last line.

    They are at the end of the file of a single run, which is truncated there. A file that was appended to by several
    runs is copied without them.
    """
    kept_bytes = position = 0
    only_at_end = True
    for line, step in _steps(path):
        position += len(line)
        if resume_step is None or step <= resume_step:
            only_at_end &= kept_bytes == position - len(line)
            kept_bytes = position
    if only_at_end and kept_bytes <= path.stat().st_size:  # else the last line lacks its end
        os.truncate(path, kept_bytes)
        return
    with replaced(path) as new, new.open("wb") as file:
        file.writelines(line for line, step in _steps(path) if resume_step is None or step <= resume_step)


_BEGIN = b'{"step": '


def _steps(path: Path) -> Iterator[tuple[bytes, int]]:
    """Yield each line and its step, without an incomplete last line.

    A line as `JsonlSink` writes it is not parsed: a million rows take half a second.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            step = line[len(_BEGIN) : line.find(b",")]
            if line.startswith(_BEGIN) and line.endswith(b"}\n") and step.isdigit():
                yield line, int(step)
                continue
            row = _parse(line)
            if row is not None:
                yield line.rstrip(b"\n") + b"\n", row["step"]
            elif line.endswith(b"\n"):
                raise _damaged_line(path, number, line)


def _damaged_line(path: Path, number: int, line: bytes) -> DamagedRunFileError:
    return DamagedRunFileError(
        f"{path}, line {number}: not a JSON object with a step ({line[:60]!r}). The file is not a metrics "
        "file, or is damaged. Move the file or fix the line."
    )


def _parse(line: bytes) -> dict[str, Any] | None:
    row = parse_row(line)
    return None if row is None or step_of_row(row) is None else row


def read_last_row(metrics: str | Path) -> Mapping[str, Any] | None:
    """Return the last complete row of a metrics file, or the mark that it ends with; None if there is neither.

    Reads only the end of the file: 64 KiB, and twice as much until it contains a row.
    """
    path = Path(metrics)
    if not path.is_file():
        return None
    with path.open("rb") as file:
        position = size = path.stat().st_size
        tail_bytes = 1 << 16
        while position:
            position = max(0, size - tail_bytes)
            file.seek(position)
            for line in reversed(file.read().splitlines()):
                row = parse_row(line)  # None: truncated by a kill, or by the beginning of the tail
                if row is not None and step_of_row(row) is not None and "time" in row:
                    return row
            tail_bytes *= 2
    return None
