"""Rules of the trainer: each rejects its bad example and accepts its good one."""

import pytest

from mb_config import check
from mb_trainer.preflight import NO_RESTART


def sections(values):
    tree = {}
    for path, value in values.items():
        name, _, leaf = path.partition(".")
        tree[name] = {**tree.get(name, {}), leaf: value} if leaf else value
    return tree


@pytest.mark.parametrize("rule", [NO_RESTART], ids=lambda rule: rule.id)
def test_a_rule_holds_on_its_own_examples(rule):
    bad, good = sections(rule.fails), sections(rule.passes)
    assert [problem.id for problem in check(bad, [rule], facts=bad.get("facts", {}))] == [rule.id]
    assert check(good, [rule], facts=good.get("facts", {})) == []
