"""Events of a run (start, resume, save, evaluation, restart, stop), as events.jsonl or a log has them."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvent:
    """Something that happened beside the steps."""

    kind: str
    """What: "start", "resume", "save", "evaluation", "restart", "stop", or another word."""
    time: float = math.nan
    """When it had happened, in seconds since the epoch; NaN: not known."""
    step: int | None = None
    """Steps done by then; None: not known."""
    seconds: float | None = None
    """How long the training waited for it; None: not recorded."""
    details: Mapping[str, object] = field(default_factory=dict)
    """What else was recorded."""

    @property
    def starts_attempt(self) -> bool:
        """Whether a process began to train here."""
        return self.kind in ("start", "resume", "restart")


def parse_event(line: str | bytes) -> RunEvent | None:
    """Return the event of a line of events.jsonl; None for a line that is none, such as one that was cut."""
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
