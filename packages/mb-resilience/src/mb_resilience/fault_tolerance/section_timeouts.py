"""Timeouts of NVRx's sections, calculated from observed durations: their file, and their minimum.

A section is a phase of a training process that it reports to NVRx's rank monitor: `setup`, `step` or `checkpointing`.
The monitor kills a rank that exceeds the timeout of its section, or that between sections. Standard library only.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mb_schema.files import write_atomically

STATE_FILE = "ft_state.json"
"""Name of the file with calculated timeouts, next to the checkpoints."""
MIN_TIMEOUT_SECONDS = 30.0
"""Minimum of calculated timeouts. NVRx takes five times the longest observed duration: a healthy run with steps of
tenths of a second would be killed if its machine stalls for a second."""


class TimeoutFile:
    """File with the state of NVRx's client, which contains the calculated timeouts for the next start.

    Args:
        path: path of the file.
        log: receives a warning if the file cannot be read or written; the run continues.
    """

    def __init__(self, path: Path | str, *, log: Callable[[str], object]) -> None:
        self._path = Path(path)
        self._log = log

    def read(self) -> Mapping[str, Any] | None:
        """Return the state that a previous start wrote; None if there is none, or if it cannot be read."""
        try:
            state = json.loads(self._path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            self._log(f"warning: {self._path}: {error}. The launcher's timeouts apply.")
            return None
        if not isinstance(state, dict):
            self._log(f"warning: {self._path}: contains no timeouts. The launcher's timeouts apply.")
            return None
        return state

    def warn_unusable(self, error: Exception) -> None:
        """Log that the client raised `error` for the state, which another version of NVRx may have written."""
        self._log(
            f"warning: {self._path}: contains no usable timeouts ({type(error).__name__}: {error}). "
            "The launcher's timeouts apply."
        )

    def write(self, state: Mapping[str, Any]) -> None:
        """Replace the file atomically, so that a reader finds either the old or the new state."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._path, json.dumps(state), durable=True)
        except OSError as error:  # such as a full disk: other ranks must not block on this one
            self._log(f"warning: {self._path}: calculated timeouts are not stored: {error}")


def apply_minimum_timeouts(
    state: Mapping[str, Any], *, min_seconds: float = MIN_TIMEOUT_SECONDS
) -> dict[str, Any]:
    """Return the state of NVRx's client with calculated timeouts of at least `min_seconds`.

    Timeouts that were set by options of the launcher are unchanged.

    Raises:
        AttributeError, KeyError, TypeError, ValueError: the state has another format.
    """
    current = dict(state.get("current_timeouts") or {})
    timeouts = dict(current.get("section") or {})
    if not timeouts:
        return dict(state)
    calculated = timeouts.get("calculated_sections") or ()
    timeouts["section"] = {
        name: max(seconds, min_seconds) if name in calculated else seconds
        for name, seconds in timeouts["section"].items()
    }
    if timeouts.get("is_out_of_section_calculated"):
        timeouts["out_of_section"] = max(timeouts["out_of_section"], min_seconds)
    return {**state, "current_timeouts": {**current, "section": timeouts}}
