"""Timing of backward passes through the timers that Megatron's schedules call. Standard library only.

A schedule calls `config.timers("backward-compute").start()` before each backward pass of a microbatch and `stop()`
after it. `ScheduleTimers` takes the place of `config.timers`, times these sections, and passes every call on to the
previous timers.
"""

from collections.abc import Callable
from typing import Any

from mb_resilience.stragglers.detection import StragglerTimer

BACKWARD = "backward-compute"
"""Name of the section in Megatron's schedules."""


class ScheduleTimers:
    """Timers for a schedule that time backward passes.

    Args:
        timer: receives the backward passes.
        previous: timers that receive every call as well; None: there are none.
    """

    def __init__(self, timer: StragglerTimer, *, previous: Callable[..., Any] | None = None) -> None:
        self._timer = timer
        self.previous = previous

    def __call__(self, name: str, *args: Any, **kwargs: Any) -> "ScheduleSection":
        """Return the section of a name; further arguments are those of the previous timers."""
        previous = None if self.previous is None else self.previous(name, *args, **kwargs)
        return ScheduleSection(self._timer if name == BACKWARD else None, previous)


class ScheduleSection:
    """Section of a schedule, with the interface of Megatron's timers that schedules use."""

    def __init__(self, timer: StragglerTimer | None, previous: Any) -> None:
        self._timer = timer
        self._previous = previous

    def start(self, *args: Any, **kwargs: Any) -> None:
        """Start the section."""
        if self._previous is not None:
            self._previous.start(*args, **kwargs)
        if self._timer is not None:
            self._timer.start_backward()

    def stop(self, *args: Any, **kwargs: Any) -> None:
        """End the section."""
        if self._timer is not None:
            self._timer.stop_backward()
        if self._previous is not None:
            self._previous.stop(*args, **kwargs)


def schedule_config(model: Any) -> Any:
    """Return the configuration whose timers a schedule calls, of the first chunk of a model; None: it has none."""
    chunk = model[0] if isinstance(model, list | tuple) else model
    while chunk is not None:
        config = getattr(chunk, "config", None)
        if hasattr(config, "timers"):
            return config
        chunk = getattr(chunk, "module", None)
    return None
