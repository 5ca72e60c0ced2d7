"""Calculated time-outs of sections: their file, and their minimum. Standard library only."""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

STATE_FILE = "ft_state.json"
"""Name of the file for calculated time-outs, next to the checkpoints."""
MIN_TIMEOUT_SECONDS = 30.0
"""Minimum of calculated time-outs. NVRx takes five times the longest duration, and a healthy run with steps of tenths
of a second would be killed at the first short interruption of its machine."""


class TimeoutFile:
    """File with the calculated time-outs of a monitor, which is read at the next start.

    Args:
        path: path of the file.
        log: receives a warning if the file cannot be read or written, which does not end the run.
    """

    def __init__(self, path: Path | str, *, log: Callable[[str], object]) -> None:
        self._path = Path(path)
        self._log_text = log

    def read(self) -> Mapping[str, Any] | None:
        """Return the time-outs of a previous start; None if there are none, or if they cannot be read."""
        try:
            state = json.loads(self._path.read_text())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            self._log_text(f"warning: {self._path}: {error}. The launcher's time-outs apply.")
            return None
        if not isinstance(state, dict):
            self._log_text(f"warning: {self._path}: contains no time-outs. The launcher's time-outs apply.")
            return None
        return state

    def reject(self, error: Exception) -> None:
        """Log that the client does not accept the time-outs: those of another version must not prevent a start."""
        self._log_text(
            f"warning: {self._path}: contains no usable time-outs ({type(error).__name__}: {error}). "
            "The launcher's time-outs apply."
        )

    def write(self, state: Mapping[str, Any]) -> None:
        """Replace the file atomically, so that a reader finds either the old or the new time-outs."""
        part = self._path.with_name(f"{self._path.name}.part")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with part.open("w") as file:
                json.dump(state, file)
                file.flush()
                os.fsync(file.fileno())
            part.replace(self._path)
        except OSError as error:  # such as a full disk: other ranks must not block on this one
            self._log_text(f"warning: {self._path}: calculated time-outs are not stored: {error}")


def apply_minimum_timeouts(
    state: Mapping[str, Any], *, min_seconds: float = MIN_TIMEOUT_SECONDS
) -> dict[str, Any]:
    """Return the state of NVRx's client with calculated time-outs raised to a minimum, in seconds.

    Time-outs from the launcher's options are unchanged.

    Raises:
        AttributeError, KeyError, TypeError, ValueError: the state has another format.
    """
    current = dict(state.get("current_timeouts") or {})
    kept = dict(current.get("section") or {})
    if not kept:
        return dict(state)
    calculated = kept.get("calculated_sections") or ()
    kept["section"] = {
        name: max(seconds, min_seconds) if name in calculated else seconds
        for name, seconds in kept["section"].items()
    }
    if kept.get("is_out_of_section_calculated"):
        kept["out_of_section"] = max(kept["out_of_section"], min_seconds)
    return {**state, "current_timeouts": {**current, "section": kept}}
