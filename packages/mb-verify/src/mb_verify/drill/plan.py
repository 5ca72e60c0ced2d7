"""Plan of a drill: kinds of faults, limits of its runs, and when and on which rank each fault is injected. No torch."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from mb_verify.errors import DrillError

FaultKind = Literal[
    "kill",
    "stop",
    "raise",
    "hang",
    "full_disk",
    "read_only",
    "deleted",
    "stale_lock",
    "port",
    "slow",
    "damaged",
    "nan",
]

FAULTS: Mapping[FaultKind, str] = {
    "kill": "a rank receives SIGKILL",
    "stop": "the command receives SIGTERM, as on preemption",
    "raise": "a rank raises an exception in a forward pass",
    "hang": "a rank is suspended (SIGSTOP); the drill ends the run when it makes no progress",
    "full_disk": "the file system of the run folder is full until the run has ended",
    "read_only": "the checkpoint folder is read-only until the run has ended",
    "deleted": "the checkpoint folder is deleted while the run trains",
    "stale_lock": "all processes receive SIGKILL, so that locks and unfinished files are left",
    "port": "all processes receive SIGKILL, and the port that the next start is to use is taken",
    "slow": "a rank sleeps in several steps",
    "damaged": "all processes receive SIGKILL, and a byte of the newest of several checkpoints is changed",
    "nan": "the output of a rank's forward pass is NaN in one step",
}
"""Kind of fault -> what is done."""

IN_PROCESS: frozenset[FaultKind] = frozenset({"raise", "slow", "nan"})
"""Faults that a callback in the process injects; the drill injects the others from outside."""

SLOW_STEPS = 3
"""Steps in which a slow rank sleeps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillPlan:
    """Faults of a drill and limits of its runs."""

    kinds: tuple[FaultKind, ...]
    seed: int = 0
    """Of the moments and ranks of the faults."""
    processes: int = 1
    rounds: int = 1
    """All faults are injected so often, each time at other moments."""
    seconds: float | None = None
    """Start rounds until so much time has passed, instead of `rounds`."""
    save_every: int | None = None
    """Steps between two checkpoints; None: the command sets it."""
    max_restarts: int = 4
    """A run that is not complete after so many restarts has not recovered."""
    patience: float | None = None
    """Seconds without a completed step after which a run is ended; None: from the undisturbed run's longest step.

    Before the first step of a start and after the last it has two minutes, and three times the undisturbed start.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFault:
    """One fault of a drill: its kind, and the moment and the rank that were drawn for it."""

    kind: FaultKind
    rank: int
    step: int
    """Step in which it is injected, from 1."""
    fraction: float
    """Part of the step that has passed by then, from 0 to 1; a save after the step counts as a part of it."""


def read_kinds(names: Sequence[str]) -> tuple[FaultKind, ...]:
    """Return the kinds of these names; all kinds if there are none.

    Raises:
        DrillError: a name is not a kind.
    """
    kinds: tuple[FaultKind, ...] = get_args(FaultKind)
    unknown = [name for name in names if name not in kinds]
    if unknown:
        raise DrillError(f"faults: {', '.join(unknown)} unknown. Choose from {', '.join(kinds)}.")
    return tuple(kind for kind in kinds if not names or kind in names)


def plan_faults(
    kinds: Sequence[FaultKind], *, steps: int, processes: int, rng: random.Random
) -> list[PlannedFault]:
    """Draw the moment and the rank of each fault. Deterministic for a given state of `rng`.

    A fault is injected in any step but the last, so that something is left to recover.
    """
    return [
        PlannedFault(
            kind=kind,
            rank=rng.randrange(processes),
            step=rng.randrange(1, steps),
            fraction=rng.random(),
        )
        for kind in kinds
    ]
