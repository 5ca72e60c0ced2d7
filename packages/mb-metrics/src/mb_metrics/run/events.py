"""Events of a run (start, resume, save, evaluation, restart, stop), as recorded in events.jsonl or in a log."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from mb_schema.json_rows import parse_row, step_of_row

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
