import pytest

from mb_loop import RULES


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_each_rule_rejects_its_bad_example_and_accepts_its_good_one(rule):
    assert rule.test(*(rule.fails[path] for path in rule.fields))
    assert rule.test(*(rule.passes[path] for path in rule.fields)) is None
