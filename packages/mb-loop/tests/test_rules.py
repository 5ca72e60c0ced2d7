import pytest

from mb_loop import RULES


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_each_rule_rejects_its_bad_example_and_accepts_its_good_one(rule):
    assert rule.message(rule.fails)
    assert rule.message(rule.passes) is None
