"""Rules of the trainer: each rejects its bad example and accepts its good one."""

import pytest

from mb_config import check
from mb_trainer.rules import RULES
from mb_trainer.validation_rules import VALIDATION_RULES


def sections(values):
    tree = {}
    for path, value in values.items():
        name, _, leaf = path.partition(".")
        tree[name] = {**tree.get(name, {}), leaf: value} if leaf else value
    return tree


@pytest.mark.parametrize("rule", [*RULES, *VALIDATION_RULES], ids=lambda rule: rule.id)
def test_a_rule_holds_on_its_own_examples(rule):
    bad, good = sections(rule.fails), sections(rule.passes)
    assert [problem.id for problem in check(bad, [rule], facts=bad.get("facts", {}))] == [rule.id]
    assert check(good, [rule], facts=good.get("facts", {})) == []


SEVERAL = {"multiple_validation_sets": True}
NAMED = {**SEVERAL, "validation_set_names": ["x", "y"]}
TWO = [["a/books", "a/web"], None]


@pytest.mark.parametrize(
    ("validation", "dataset", "broken"),
    [
        (SEVERAL, {"data_path": "a/books a/web"}, []),
        (SEVERAL, {"blend": TWO}, []),
        (SEVERAL, {"blend_per_split": [TWO, None, None], "blend": TWO}, ["T33"]),
        (SEVERAL, {"data_path": "1 a/valid 1 b/valid"}, ["T34"]),
        (NAMED, {"data_path": "1 a/valid 1 b/valid"}, []),
        (NAMED, {"blend_per_split": [None, [["a/books"], None], None]}, ["T34"]),
        (NAMED, {"blend_per_split": [None]}, []),  # a rule of the dataset rejects it
        (SEVERAL, {"data_path": ""}, []),
        ({}, {"blend": TWO}, []),
    ],
)
def test_validation_sets_are_counted_and_told_apart(validation, dataset, broken):
    tokens = {"mmap_bin_files": True, "blend": None, "data_path": None, "blend_per_split": None}
    validation = {"multiple_validation_sets": False, "validation_set_names": None, **validation}
    found = check({"validation": validation, "dataset": {**tokens, **dataset}}, VALIDATION_RULES)
    assert [problem.id for problem in found] == broken
