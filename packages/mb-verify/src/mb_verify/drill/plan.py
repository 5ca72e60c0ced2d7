"""Plan of a drill: faults to inject, and limits of its runs."""

from dataclasses import dataclass

from mb_verify.drill.faults import FaultKind


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
