"""Constraints of CloudAI: each is a rule, is covered by rules, or is allowed with a reason."""

from mb_config.rules.capture_conflicts import RULES
from mb_launch.cloudai.constraints import CONSTRAINTS
from mb_launch.cloudai.coverage import CONSTRAINT_COVERAGE
from mb_trainer.preflight import RULES as ALL_RULES

SAME = {
    "C01": ["V030"], "C02": ["P05"], "C03": ["V030"], "C04": ["V242"], "C07": ["P09"], "C08": ["P05"],
    "C11": ["O09m"], "C13": ["V150"], "C14": ["V152", "V153"], "C19": ["P07"], "C20": ["O09f"],
}  # fmt: skip
"""Constraints that a rule of a package checks on a configuration."""

LEFT_OUT = {
    "C05": "Megatron Core allows it",
    "C06": "Megatron Core allows it but for pipeline stages, which FS05 rejects",
    "C09": "Megatron Core allows it: instances of the distributed optimizer need no FSDP",
    "C18": "any layout of stages is allowed",
}


def test_every_constraint_is_a_rule_or_has_a_reason() -> None:
    known = {rule.id for rule in ALL_RULES}
    assert [name for names in SAME.values() for name in names if name not in known] == []
    assert sorted([*SAME, *LEFT_OUT, *(rule.id for rule in RULES)]) == sorted(CONSTRAINTS)


def test_each_constraint_is_a_rule_or_has_its_coverage() -> None:
    known = {rule.id for rule in ALL_RULES}
    assert {*CONSTRAINTS} - known == {*CONSTRAINT_COVERAGE}
    assert {rule for each in CONSTRAINT_COVERAGE.values() for rule in each.rules} <= known
    assert all(each.rules or each.allowed for each in CONSTRAINT_COVERAGE.values())
