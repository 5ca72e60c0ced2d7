"""Result of a training run. The library never exits the process; the caller does."""

from dataclasses import dataclass
from typing import Literal

ExitReason = Literal[
    "finished",
    "early_stop",
    "signal",
    "duration",
    "interval",
    "stragglers",
    "rerun",
    "skip_train",
    "spare",
]
"""Reason for leaving the loop. "early_stop": a callback ended training, such as `EarlyStopping`. "signal" is any stop
request returned by `stop_requested`; a "spare" process has not trained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopExit:
    """Decision to leave the loop."""

    reason: ExitReason
    message: str
    exit_code: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainOutcome:
    """Return value of `train`."""

    reason: ExitReason
    """Reason for the end of training. After the last step always "finished", whatever exit condition holds."""

    message: str
    """Message of one line for the user."""

    step: int
    """Finished steps since the beginning of training, not of this process."""

    exit_code: int
    """Exit code for a command line: 0, or the code of the rerun machine."""

    saved: bool
    """Whether this call wrote a persistent checkpoint of exactly `step`."""

    validated: bool = False
    """Whether this call completed a validation after `step`."""


SPARE = TrainOutcome(reason="spare", message="", step=0, exit_code=0, saved=False)
"""Outcome of a spare process, which would have replaced a rank after a fault (in-process restarts)."""
