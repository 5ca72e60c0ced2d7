"""Report of a drill as a table for people and as data for programs. No torch."""

from collections.abc import Sequence
from itertools import groupby

from mb_verify.drill.plan import FAULTS
from mb_verify.drill.report import DrillReport, FaultOutcome
from mb_verify.drill.run import ENDED


def drill_as_text(report: DrillReport) -> str:
    """Return a line for each fault with what it cost, the end of each disturbed start, and the conclusion."""
    plan = report.plan
    processes = f"{plan.processes} process{'es' if plan.processes > 1 else ''}"
    saves = f", a checkpoint each {plan.save_every} steps" if plan.save_every else ""
    lines = [
        f"{report.steps} steps{saves}, {processes}, seed {plan.seed}; undisturbed: {report.seconds:.1f} s, "
        f"{report.step_seconds:.2f} s a step",
        f"{'fault':<11}{'moment':<24}{'restarts':>9}{'steps lost':>12}{'seconds lost':>14}  results",
    ]
    for outcome in report.outcomes:
        lines += [row_of(outcome), *details_of(outcome)]
    return "\n".join([*lines, conclusion_text(report)])


def row_of(outcome: FaultOutcome) -> str:
    """Return the line of a fault."""
    fault = outcome.fault
    if outcome.skipped is not None:
        return f"{fault.kind:<11}skipped: {outcome.skipped}"
    moment = f"step {fault.step} + {fault.fraction:.0%}, rank {fault.rank}"
    seconds = "" if outcome.seconds_lost is None else f"{round(outcome.seconds_lost, 1) + 0.0:.1f}"
    if outcome.not_recovered is not None:
        results = "not recovered"
    else:
        results = "equal" if outcome.difference is None else "different"
    return (
        f"{fault.kind:<11}{moment:<24}{outcome.restarts:>9}{outcome.steps_lost:>12}{seconds:>14}  {results}"
    )


def details_of(outcome: FaultOutcome) -> list[str]:
    """Return the ends of the disturbed starts, and what is wrong."""
    if outcome.skipped is not None:
        return []
    wrong = [text for text in (outcome.difference, outcome.not_recovered) if text is not None]
    return [f"  {line}" for line in (f"({FAULTS[outcome.fault.kind]})", *end_lines(outcome.ends), *wrong)]


def end_lines(ends: Sequence[str]) -> list[str]:
    """Return a line for each start that did not end in order; equal ones in a row share a line."""
    lines, first = [], 0
    for end, group in groupby(ends):
        last = first + len(list(group))
        starts = f"start {last}" if last == first + 1 else f"starts {first + 1} to {last}"
        lines += [] if end == ENDED else [f"{starts} {end}"]
        first = last
    return lines


def conclusion_text(report: DrillReport) -> str:
    """Return the last line of the report."""
    injected = [outcome for outcome in report.outcomes if outcome.skipped is None]
    skipped = len(report.outcomes) - len(injected)
    counted = f"{len(injected)} faults injected, {skipped} skipped"
    if report.conclusion == "passed":
        return f"passed: {counted}; the run recovered from each, and its results are equal bit for bit"
    if report.conclusion == "not repeatable":
        return (
            f"not repeatable: {counted}; two undisturbed runs differ, so that this is not a proof against the "
            f"recovery; first in\n  {report.repetition}"
        )
    failed = ", ".join(f"{outcome.fault.kind}" for outcome in injected if not outcome.passed)
    return f"failed: {counted}; not recovered or different: {failed or 'none, because nothing was injected'}"


def drill_as_data(report: DrillReport) -> dict[str, object]:
    """Return the report as JSON can hold it; `conclusion` is "passed", "failed" or "not repeatable"."""
    return {
        "conclusion": report.conclusion,
        "seed": report.plan.seed,
        "processes": report.plan.processes,
        "steps": report.steps,
        "step_seconds": report.step_seconds,
        "undisturbed_seconds": report.seconds,
        "repetition": report.repetition,
        "faults": [outcome_as_data(outcome) for outcome in report.outcomes],
    }


def outcome_as_data(outcome: FaultOutcome) -> dict[str, object]:
    """Return the result of a fault as JSON can hold it."""
    fault = outcome.fault
    return {
        "fault": fault.kind,
        "rank": fault.rank,
        "step": fault.step,
        "fraction": fault.fraction,
        "skipped": outcome.skipped,
        "restarts": outcome.restarts,
        "steps_lost": outcome.steps_lost,
        "seconds_lost": outcome.seconds_lost,
        "equal": outcome.passed,
        "difference": outcome.difference,
        "not_recovered": outcome.not_recovered,
        "ends": list(outcome.ends),
    }
