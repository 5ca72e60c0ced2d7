"""Events of a run (start, resume, save, evaluation, restart, stop), as recorded in events.jsonl or in a log."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field


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
    try:
        value = json.loads(line)
    except ValueError:
        return None
    if not isinstance(value, dict) or not isinstance(value.get("event"), str):
        return None
    seconds = value.pop("seconds", None)
    time, step = value.pop("time", None), value.pop("step", None)
    return RunEvent(
        kind=value.pop("event"),
        time=float(time) if isinstance(time, (int, float)) else math.nan,
        step=step if isinstance(step, int) else None,
        seconds=float(seconds) if isinstance(seconds, (int, float)) else None,
        details=value,
    )
