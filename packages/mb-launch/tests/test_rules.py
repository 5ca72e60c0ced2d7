"""Each rule rejects its failing example, accepts its passing one, and tolerates fields that are not set."""

import pytest

from mb_launch import RULES


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_holds_on_its_examples(rule):
    assert rule.message(rule.fails)
    assert rule.message(rule.passes) is None
    assert {*rule.fails, *rule.passes} <= {*rule.fields}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_fields_that_are_not_set_are_no_violation(rule):
    assert rule.message({}) is None


def test_identifiers_are_unique():
    assert len({rule.id for rule in RULES}) == len(RULES)


@pytest.mark.parametrize(
    ("rule_id", "given", "message"),
    [
        ("T20", [True], "is not supported (lazy_mpu_init=true)"),
        ("T23", [True, 1, False, None], "does not support model.mtp_num_layers=1"),
        ("T37", [2, None, False], "num_distributed_optimizer_instances=2, but einops is not installed"),
        ("T38", [True, 2, 1, 1, 2, 1], "is true with pp=2, and tp x cp is 1, but etp x ep is 2"),
        ("T38", [True, 1, 1, 1, 2, 1], None),
        ("T40", ["dp_replica", None], "dp_replica, but there is one replica of the optimizer"),
        ("T41", [True, True], "is true, but this machine has no GPU"),
    ],
)  # fmt: skip
def test_messages(rule_id, given, message):
    (rule,) = (rule for rule in RULES if rule.id == rule_id)
    assert rule.message(dict(zip(rule.fields, given, strict=False))) == message
