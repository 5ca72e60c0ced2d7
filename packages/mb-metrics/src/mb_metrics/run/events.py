"""Events of a run (start, resume, save, evaluation, restart, stop) in events.jsonl or in a log.

They are appended, read back, and completed after a crash.
"""

import json
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mb_metrics.sinks.append_file import LineFile
from mb_metrics.sinks.jsonl import read_last_row
from mb_schema.json_rows import parse_row, plain_number, step_of_row

logger = logging.getLogger(__name__)

STARTS = ("start", "resume")
"""Events with which a process starts to train."""
_EARLIEST, _LATEST = -(2.0**35), 2.0**37
"""Numbers of seconds: about the years 900 and 6,300, which calendars have."""
_FIELDS = frozenset({"event", "time", "step", "seconds"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvent:
    """An event of a run that is not a step."""

    kind: str
    """Kind of event: "start", "resume", "save", "evaluation", "restart", "stop", or another name."""
    time: float = math.nan
    """Time of completion in seconds since the epoch; NaN: not known."""
    step: int | None = None
    """Completed steps at that time; None: not known."""
    seconds: float | None = None
    """Time for which the event blocked training, in seconds; None: not recorded."""
    details: Mapping[str, object] = field(default_factory=dict)
    """Other recorded fields."""

    @property
    def starts_attempt(self) -> bool:
        """True if a process started to train with this event."""
        return self.kind in ("start", "resume", "restart")


def parse_event(line: str | bytes) -> RunEvent | None:
    """Parse a line of events.jsonl; return None if the line is not an event, for example if it is truncated."""
    row = parse_row(line)
    if row is None or not isinstance(row.get("event"), str):
        return None
    return RunEvent(
        kind=row["event"],
        time=time_of_row(row),
        step=step_of_row(row),
        seconds=seconds_in(row.get("seconds")),
        details={name: value for name, value in row.items() if name not in _FIELDS},
    )


def time_of_row(row: Mapping[str, object]) -> float:
    """Return the time of a row in seconds since the epoch; NaN if it has none that a calendar has."""
    time = seconds_in(row.get("time"))
    return math.nan if time is None else time


def seconds_in(value: object) -> float | None:
    """Return a number of seconds, or of seconds since the epoch; None for anything else and for absurd numbers."""
    known = isinstance(value, int | float) and _EARLIEST < value < _LATEST
    return float(value) if known else None  # type: ignore[arg-type]  # a number, by the line above


class EventLog:
    """Event log that appends one JSON object per event to a file; each line is flushed at once.

    If the file cannot be written, as on a full disk, a warning is logged once, and the event is written with a later
    one: see `LineFile`.

    Args:
        path: The file, such as events.jsonl in a run folder.
        clock: Clock that returns seconds since the epoch.
    """

    def __init__(self, path: str | Path, *, clock: Callable[[], float] = time.time) -> None:
        self._file = LineFile(path, warn=logger.warning)
        self._clock = clock

    def write(self, event: str, **fields: object) -> None:
        """Append one event with the time in seconds since the epoch; NaN and infinity are text, as in metrics.jsonl."""
        row = {
            "event": event,
            "time": self._clock(),
            **{name: _plain(value) for name, value in fields.items()},
        }
        self._file.append(json.dumps(row, allow_nan=False))


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return plain_number(value) if isinstance(value, float) else value


def changed_code(
    events: str | Path, code: Mapping[str, Sequence[str]]
) -> dict[str, tuple[Sequence[str], Sequence[str]]]:
    """Return `code.<part>` -> (names at the last start, current names) for each part of the user's code that differs.

    Empty if no start is recorded in the events file.
    """
    starts = [row for row in read_event_rows(events) if row.get("event") in STARTS]
    if not starts:
        return {}
    previous: Mapping[str, Any] = starts[-1].get("code", {})
    parts = dict.fromkeys((*previous, *code))
    both = {part: (previous.get(part, []), code.get(part, [])) for part in parts}
    return {f"code.{part}": names for part, names in both.items() if names[0] != names[1]}


def read_event_rows(events: str | Path) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of an events file; none if it does not exist. Lines truncated by a kill are skipped."""
    path = Path(events)
    if not path.is_file():
        return
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            row = parse_row(line)
            if row is not None:
                yield row


@dataclass(frozen=True, slots=True, kw_only=True)
class LastStep:
    """Last step recorded in metrics.jsonl."""

    step: int
    time: float
    """Time of the record in seconds since the epoch."""


def read_last_step(metrics: str | Path) -> LastStep | None:
    """Return the last step of a metrics file, of which only the end is read; None if there is none."""
    row = read_last_row(metrics)
    step = None if row is None else step_of_row(row)
    return None if row is None or step is None else LastStep(step=step, time=time_of_row(row))


def write_missing_stop(
    events: str | Path,
    *,
    metrics: str | Path,
    message: str,
    clock: Callable[[], float] = time.time,
) -> None:
    """Append the stop event of a run whose processes died before they could write it; do nothing if it exists.

    Args:
        events: Events file of the run; may be missing.
        metrics: Metrics file of the run, which has the last step; may be missing.
        message: Reason of the end.
        clock: Clock that returns seconds since the epoch.
    """
    marks = [row for row in read_event_rows(events) if row.get("event") in (*STARTS, "stop")]
    if not marks or marks[-1]["event"] == "stop":
        return
    last = read_last_step(metrics)
    step = marks[-1].get("step") if last is None else last.step
    EventLog(events, clock=clock).write("stop", step=step, reason="failed", message=message)
