"""Verdicts as a table for people and as data for programs. No torch."""

from mb_verify.comparison.diagnosis import ResumeProof, diagnosis_lines
from mb_verify.comparison.records import Difference, Verdict
from mb_verify.resume.interruption import Interruption


def verdict_table(verdict: Verdict) -> list[str]:
    """Return a line for each category: number of names, of values and of differences."""
    rows = [("compared", "names", "values", "different")]
    rows += [
        (count.category, str(len(count.names)), f"{count.compared:,}", f"{count.different:,}")
        for count in verdict.lines
    ]
    return [f"{a:<16}{b:>8}{c:>12}{d:>12}" for a, b, c, d in rows]


def verdict_as_text(verdict: Verdict, interruption: Interruption) -> str:
    """Return the table and the first difference."""
    ranks = "" if interruption.resumed_by else f" on {verdict.ranks} rank{'s' if verdict.ranks > 1 else ''}"
    how = "killed after" if interruption.kill else "interrupted at"
    summary = f"{verdict.last_step} steps{ranks}, {how} {', '.join(map(str, verdict.resumed_at))}"
    if verdict.first is None:
        end = [f"equal, bit for bit: {summary}"]
    else:
        end = [f"different: {summary}; first in", f"  {verdict.first}"]
    return "\n".join([*verdict_table(verdict), *end, *verdict.notes])


def verdict_as_data(verdict: Verdict, interruption: Interruption) -> dict[str, object]:
    """Return the verdict as JSON can hold it."""
    return {
        "equal": verdict.equal,
        "steps": verdict.last_step,
        "resumed_at": list(verdict.resumed_at),
        "killed": interruption.kill,
        "compared": counts_as_data(verdict),
        "first": difference_as_data(verdict.first, "interrupted"),
    }


def counts_as_data(verdict: Verdict) -> dict[str, dict[str, int]]:
    """Return the numbers of names, values and differences of each category."""
    return {
        count.category: {"names": len(count.names), "values": count.compared, "different": count.different}
        for count in verdict.lines
    }


def difference_as_data(first: Difference | None, second: str) -> dict[str, object] | None:
    """Return the first difference as JSON can hold it; the value of the second run has the key `second`."""
    if first is None:
        return None
    return {
        "category": first.category,
        "name": first.name,
        "step": first.position.step,
        "held": first.position.after_step,
        "rank": first.position.rank,
        "uninterrupted": first.uninterrupted,
        second: first.interrupted,
    }


def proof_as_text(proof: ResumeProof, interruption: Interruption) -> str:
    """Return the table, the first difference and the diagnosis."""
    return "\n".join([verdict_as_text(proof.verdict, interruption), *diagnosis_lines(proof)])


def proof_as_data(proof: ResumeProof, interruption: Interruption) -> dict[str, object]:
    """Return a proof as JSON can hold it; `verdict` is "equal", "resume differs" or "not repeatable"."""
    repeated = proof.repetition
    return {
        **verdict_as_data(proof.verdict, interruption),
        "verdict": proof.conclusion,
        "loaded_state_equal": proof.verdict.loaded_equal,
        "repetition": None
        if repeated is None
        else {"equal": repeated.equal, "first": difference_as_data(repeated.first, "repetition")},
        "conditions": proof.conditions,
    }
