"""Replacement of rejected values that the user did not set by the fallback of the rule."""

from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from mb_config import Provenance
from mb_config.resolve.fallbacks import apply_fallbacks


@dataclass(frozen=True, kw_only=True)
class Unavailable:
    """A rule that rejects a switch where a fact is false."""

    path: str
    fact: str = "facts.kernel"
    id: str = "X1"
    why: str = "the kernel is not installed"
    fix: str = "Install it."
    severity: str = "error"
    fallback: Mapping[str, object]

    @property
    def fields(self):
        return (self.path, self.fact)

    @property
    def fails(self):
        return {self.path: True, self.fact: False}

    @property
    def passes(self):
        return {self.path: True, self.fact: True}

    def test(self, on, there):
        return "is on" if on and not there else None


OFF = Unavailable(path="model.bf16", fallback={"model.bf16": False})


@pytest.fixture
def config(make):
    made = make()
    made.model.bf16 = True
    return made


@pytest.mark.parametrize("origin", ["recipe llama", "resolve: V017"])
def test_a_value_that_the_user_did_not_set_is_replaced_and_shown(config, origin):
    provenance = Provenance({"model.bf16": origin})
    changes = apply_fallbacks(config, [OFF], facts={"kernel": False}, provenance=provenance)
    assert [str(change) for change in changes] == [
        "model.bf16: True -> False (X1: the kernel is not installed)"
    ]
    assert (config.model.bf16, provenance.origin("model.bf16")) == (
        False,
        "resolve: X1: the kernel is not installed",
    )
    assert apply_fallbacks(config, [OFF], facts={"kernel": False}, provenance=provenance) == []


@pytest.mark.parametrize(
    ("facts", "origin"),
    [({"kernel": True}, "recipe x"), ({}, "recipe x"), ({"kernel": False}, "command line")],
    ids=["available", "not known", "set by the user"],
)
def test_other_values_stay(config, facts, origin):
    provenance = Provenance({"model.bf16": origin})
    assert apply_fallbacks(config, [OFF], facts=facts, provenance=provenance) == []
    assert config.model.bf16


def test_a_later_rule_reads_what_an_earlier_one_replaced(config):
    other = Unavailable(id="X2", path="model.fp16", fallback={"model.fp16": False})
    first = Unavailable(path="model.bf16", fallback={"model.bf16": False, "model.fp16": True})
    provenance = Provenance({"model.bf16": "recipe x"})
    changes = apply_fallbacks(config, [first, other], facts={"kernel": False}, provenance=provenance)
    assert [change.field for change in changes] == ["model.bf16"]
    assert provenance.origin("model.fp16").startswith("resolve: X2: ")  # it was switched on, and off again


def test_a_default_is_replaced_and_a_value_set_in_code_is_not(make):
    default, chosen = make(), make()
    rule = Unavailable(path="ddp.check_for_nan_in_grad", fallback={"ddp.check_for_nan_in_grad": False})
    chosen.ddp.check_for_nan_in_grad = True
    for config in (default, chosen):
        apply_fallbacks(config, [rule], facts={"kernel": False})
    assert (default.ddp.check_for_nan_in_grad, chosen.ddp.check_for_nan_in_grad) == (False, True)


def test_a_rule_without_a_fallback_or_of_a_field_that_is_not_there_changes_nothing(config):
    rules = [
        Unavailable(path="model.bf16", fallback={}),
        Unavailable(path="model.x", fallback={"model.x": 1}),
    ]
    assert apply_fallbacks(config, rules, facts={"kernel": False}) == []


def test_values_of_a_wrong_type_are_left_to_the_check(config):
    config.train.train_iters = "many"
    assert apply_fallbacks(config, [OFF], facts={"kernel": False}, provenance=Provenance()) == []
