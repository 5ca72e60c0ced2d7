"""Each rule of the trainer refuses its own bad example and accepts its good one."""

import pytest

from mb_config import check
from mb_trainer.rules import RULES


def sections(values):
    tree = {}
    for path, value in values.items():
        name, _, leaf = path.partition(".")
        tree[name] = {**tree.get(name, {}), leaf: value} if leaf else value
    return tree


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_holds_on_its_own_examples(rule):
    assert [problem.id for problem in check(sections(rule.fails), [rule])] == [rule.id]
    assert check(sections(rule.passes), [rule]) == []
