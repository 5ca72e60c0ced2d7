"""Coverage of CloudAI's constraints by rules, for each constraint that is not a rule itself."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstraintCoverage:
    """Coverage of one constraint by rules."""

    rules: tuple[str, ...] = ()
    """Rules with the same condition."""
    allowed: str = ""
    """Part of the condition that is allowed here, if any."""


CONSTRAINT_COVERAGE: Mapping[str, ConstraintCoverage] = {
    "C01": ConstraintCoverage(rules=("V030",)),
    "C02": ConstraintCoverage(rules=("P05",)),
    "C03": ConstraintCoverage(rules=("V030",)),
    "C04": ConstraintCoverage(rules=("V242",)),
    "C05": ConstraintCoverage(allowed="Megatron Core allows CUDA graphs under Megatron-FSDP."),
    "C06": ConstraintCoverage(
        rules=("FS05",),
        allowed="Megatron Core allows context parallelism under Megatron-FSDP, but no stages.",
    ),
    "C07": ConstraintCoverage(rules=("P09",)),
    "C08": ConstraintCoverage(rules=("P05",)),
    "C09": ConstraintCoverage(
        rules=("FS10",),
        allowed="Megatron Core allows several instances of the distributed optimizer without Megatron-FSDP; it is with "
        "Megatron-FSDP that this trainer takes one only.",
    ),
    "C11": ConstraintCoverage(rules=("O09m",)),
    "C13": ConstraintCoverage(rules=("V150",)),
    "C14": ConstraintCoverage(rules=("V152", "V153")),
    "C15": ConstraintCoverage(rules=("K28",)),
    "C16": ConstraintCoverage(rules=("K29",)),
    "C17": ConstraintCoverage(rules=("K34",)),
    "C18": ConstraintCoverage(
        allowed="Any number of stages with a layout is allowed: the recipe deepseek_v3 sets one in "
        "model.pipeline_model_parallel_layout."
    ),
    "C19": ConstraintCoverage(rules=("P07",)),
    "C20": ConstraintCoverage(rules=("O09f",)),
}
"""Coverage by constraint. The other constraints are rules with the same number."""


def explain_coverage(name: str) -> tuple[str, tuple[str, ...]] | None:
    """Return how a constraint that is not a rule itself is covered, and the rules with its condition.

    None: there is no such constraint, or it is a rule with the same number.
    """
    coverage = CONSTRAINT_COVERAGE.get(name.upper())
    if coverage is None:
        return None
    covered = coverage.allowed or f"The same problem is reported by {' and '.join(coverage.rules)}."
    return (
        f"{name.upper()} is a constraint of CloudAI's on a launch, and no rule of its own. {covered}",
        coverage.rules,
    )
