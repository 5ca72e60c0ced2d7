"""How a run ended, as a record for the caller: the library never exits the process."""

from dataclasses import dataclass
from typing import Literal

ExitReason = Literal["finished", "signal", "duration", "interval", "stragglers", "rerun", "skip_train"]
"""Why the loop was left; "signal" stands for any wish that `stop_requested` brought."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopExit:
    """The decision to leave the loop."""

    reason: ExitReason
    message: str
    exit_code: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainOutcome:
    """What `train` returns."""

    reason: ExitReason
    """Why training ended. The last step always ends with "finished", whatever else is true then."""

    message: str
    """One line for people."""

    step: int
    """Finished steps, counted from the beginning of the training, not of this process."""

    exit_code: int
    """What a command line should exit with: 0, or the code of a rerun machine."""

    saved: bool
    """A lasting checkpoint of exactly `step` was written by this call."""
