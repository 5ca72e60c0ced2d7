"""Diagnosis of a difference: an inexact resume, or a machine whose runs cannot be repeated. No torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from mb_verify.comparison.records import Verdict
from mb_verify.record.run_record import RunRecord

Conclusion = Literal["equal", "resume differs", "not repeatable"]

EXIT_CODES: Mapping[Conclusion, int] = {"equal": 0, "resume differs": 1, "not repeatable": 3}
"""Exit code for each conclusion. 2 is left for requests that cannot be read."""

MEANINGS: Mapping[Conclusion, str] = {
    "resume differs": "the resume is not exact: two uninterrupted runs are equal, and the resumed one differs",
    "not repeatable": "the machine is not repeatable: runs differ without a resume, so that this is not a proof "
    "against the resume",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeProof:
    """Comparison of an uninterrupted run with an interrupted one, and with a repetition if they differ."""

    verdict: Verdict
    repetition: Verdict | None
    """Comparison of the uninterrupted run with a second one; None: not needed."""
    conditions: Mapping[str, Mapping[str, str]]
    """Name of a start and rank -> threads, processor and versions."""

    @property
    def conclusion(self) -> Conclusion:
        """Return the cause of a difference, or "equal".

        A run that differs before it was interrupted has not been resumed yet: it differs as two uninterrupted runs do.
        """
        if self.verdict.equal:
            return "equal"
        repeated = self.repetition is None or self.repetition.equal
        return (
            "not repeatable" if not repeated or self.verdict.differs_before_interruption else "resume differs"
        )


def conditions_of(records: Mapping[str, RunRecord]) -> dict[str, Mapping[str, str]]:
    """Return the conditions of every start and rank, by a readable name."""
    return {
        f"{name} run, start {start + 1}, rank {rank}": values
        for name, record in records.items()
        for (start, rank), values in sorted(record.conditions.items())
    }


def diagnosis_lines(proof: ResumeProof) -> list[str]:
    """Return lines that help to find the cause of a difference; none where all is equal."""
    conclusion = proof.conclusion
    if conclusion == "equal":
        return []
    lines = [f"  state before the first resumed step: {describe_loaded(proof.verdict.loaded_equal)}"]
    if proof.repetition is not None:
        first = proof.repetition.first
        result = (
            "equal"
            if first is None
            else f"different; first in\n    {first.describe('the first', 'the second')}"
        )
        lines.append(f"  two uninterrupted runs: {result}")
        if first is not None and first.category == "random streams":
            lines.append(f"  {first.name} may have no seed: seed every random stream, used or not")
    if proof.verdict.differs_before_interruption:
        lines.append("  the first difference is before the interruption")
    return [*lines, *condition_lines(proof.conditions), f"verdict: {MEANINGS[conclusion]}"]


def describe_loaded(equal: bool | None) -> str:
    """Return a description of `Verdict.loaded_equal`."""
    if equal is None:
        return "not compared"
    return "equal" if equal else "different: the checkpoint did not store it, or the load did not restore it"


def condition_lines(conditions: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Return the conditions that all starts share in one line, and a line for each condition that differs."""
    names = list(dict.fromkeys(name for values in conditions.values() for name in values))
    values = {
        name: {where: of_start.get(name, "unknown") for where, of_start in conditions.items()}
        for name in names
    }
    shared = {name: by_run for name, by_run in values.items() if len(set(by_run.values())) == 1}
    same = ", ".join(f"{name}: {next(iter(by_run.values()))}" for name, by_run in shared.items())
    lines = [f"  conditions: {same}"] if same else []
    for name, by_run in values.items():
        if name not in shared:
            lines.append(
                f"  {name} differs: " + "; ".join(f"{value} in {where}" for where, value in by_run.items())
            )
    return lines
