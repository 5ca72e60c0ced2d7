"""Results of a drill: each run under a fault compared with the undisturbed one."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from mb_verify.drill.plan import DrillPlan, PlannedFault
from mb_verify.drill.progress import StartProgress, first_completions, steps_lost

DrillConclusion = Literal["passed", "failed", "not repeatable"]

DRILL_EXIT_CODES: Mapping[DrillConclusion, int] = {"passed": 0, "failed": 1, "not repeatable": 3}
"""Exit code for each conclusion of a drill."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """A run that has ended, with all its starts."""

    starts: tuple[StartProgress, ...]
    ends: tuple[str, ...]
    """Readable end of each start."""
    began: float
    """Time of the first start, in seconds since the epoch."""
    complete: bool
    values: Mapping[tuple[int, int], Mapping[str, str]]

    def seconds(self, *, from_first_step: bool) -> float:
        """Return the seconds until the last start had completed the last step.

        They count from the first completed step, or from the start of the command.
        """
        times = first_completions(self.starts)
        end = max(start.completed.get(max(times), 0.0) for start in self.starts)
        return end - (times[min(times)] if from_first_step else self.began)


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultOutcome:
    """Result of one fault."""

    fault: PlannedFault
    skipped: str | None = None
    """Reason why the fault was not injected; the other fields are empty then."""
    restarts: int = 0
    steps_lost: int = 0
    """Steps that were computed again."""
    seconds_lost: float | None = None
    """Seconds that the run took longer than the undisturbed one; None: it did not recover."""
    difference: str | None = None
    """First result that differs from the undisturbed run; None: all are equal, bit for bit."""
    not_recovered: str | None = None
    """How the run failed to recover; None: it is complete."""
    ends: tuple[str, ...] = ()
    """Readable end of each start."""

    @property
    def passed(self) -> bool:
        """Whether the fault was injected, and the run recovered with equal results."""
        return self.skipped is None and self.not_recovered is None and self.difference is None


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillReport:
    """Results of a drill."""

    plan: DrillPlan
    steps: int
    step_seconds: float
    """Median time of a step in the undisturbed run."""
    seconds: float
    """Of the undisturbed run, from the start of the command to its last step."""
    outcomes: tuple[FaultOutcome, ...]
    repetition: str | None = None
    """First difference between two undisturbed runs; None: they are equal, or no second one was needed."""

    @property
    def conclusion(self) -> DrillConclusion:
        """Return whether the run survived all faults that were injected, and at least one was."""
        injected = [outcome for outcome in self.outcomes if outcome.skipped is None]
        if any(outcome.not_recovered for outcome in injected) or not injected:
            return "failed"
        if all(outcome.passed for outcome in injected):
            return "passed"
        return "failed" if self.repetition is None else "not repeatable"


def gaps_of(run: RunResult) -> dict[int, float]:
    """Return for each step the seconds since the previous one was complete, or since the start of the command.

    A step that was not recorded, such as one of `train.iterations_to_skip`, has those of the next one.
    """
    gaps: dict[int, float] = {}
    last, previous = 0, run.began
    for step, moment in sorted(first_completions(run.starts).items()):
        gaps |= dict.fromkeys(range(last + 1, step + 1), moment - previous)
        last, previous = step, moment
    return gaps


def outcome_of(fault: PlannedFault, disturbed: RunResult, undisturbed: RunResult) -> FaultOutcome:
    """Compare a run with the undisturbed one."""
    failed = (
        None
        if disturbed.complete
        else f"is not complete after {len(disturbed.starts)} starts; the last {disturbed.ends[-1]}"
    )
    lost = None
    if disturbed.complete:
        reached = bool(disturbed.starts[0].completed)
        lost = disturbed.seconds(from_first_step=reached) - undisturbed.seconds(from_first_step=reached)
    return FaultOutcome(
        fault=fault,
        restarts=len(disturbed.starts) - 1,
        steps_lost=steps_lost(disturbed.starts),
        seconds_lost=lost,
        difference=first_difference(undisturbed.values, disturbed.values) if disturbed.complete else None,
        not_recovered=failed,
        ends=disturbed.ends,
    )


def first_difference(
    expected: Mapping[tuple[int, int], Mapping[str, str]], actual: Mapping[tuple[int, int], Mapping[str, str]]
) -> str | None:
    """Return the first result, by step and rank, that two runs do not share; None: all are equal, bit for bit."""
    for step, rank in sorted({*expected, *actual}):
        values, actual_values = expected.get((step, rank), {}), actual.get((step, rank), {})
        for name in sorted({*values, *actual_values}):
            if values.get(name) != actual_values.get(name):
                return (
                    f"{name}, in step {step}, rank {rank}: {values.get(name, 'nothing')} in the undisturbed run, "
                    f"{actual_values.get(name, 'nothing')} in this one"
                )
    return None
