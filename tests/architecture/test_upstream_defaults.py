"""Our defaults against those of Megatron-Bridge 0.6.2 (`upstream_defaults.json`): each difference has a reason."""

import json
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

import mb_overlap
import mb_trainer.config
from mb_config.megatron_defaults import plain_value
from mb_models.trainer_api import megatron_fields
from mb_trainer.bridge import providers

HERE = Path(__file__).parent
UPSTREAM = json.loads((HERE / "upstream_defaults.json").read_text())["classes"]
REASONS = json.loads((HERE / "default_differences.json").read_text())
OURS = {
    "GPTModelProvider": providers.GPTModelProvider,
    "HybridModelProvider": providers.HybridModelProvider,
    "T5ModelProvider": providers.T5ModelProvider,
}
"""Class of Megatron-Bridge -> ours, where the name differs."""


def default_of(field: Field[Any]) -> Any:
    if field.default is not MISSING:
        return plain_value(field.default)
    if field.default_factory is MISSING:
        return "(required)"
    value = field.default_factory()
    return f"{type(value).__name__}()" if is_dataclass(value) else plain_value(value)


def own_defaults(name: str) -> dict[str, Any]:
    cls = OURS.get(name) or getattr(mb_trainer.config, name, None) or getattr(mb_overlap, name)
    return {field.name: default_of(field) for field in fields(cls)}


@pytest.mark.parametrize("name", UPSTREAM)
def test_each_other_default_has_a_reason(name: str):
    upstream, own = UPSTREAM[name], own_defaults(name)
    different = {field: (own[field], upstream[field]) for field in own.keys() & upstream.keys()}
    different = {field: pair for field, pair in different.items() if pair[0] != pair[1]}
    assert different.keys() == REASONS["differences"].get(name, {}).keys(), different


@pytest.mark.parametrize("name", UPSTREAM)
def test_each_field_that_is_lacking_has_a_reason(name: str):
    lacking = UPSTREAM[name].keys() - own_defaults(name).keys()
    known = REASONS["lacking"].get(name, {})
    assert lacking == known.keys() or ("*" in known and lacking), lacking


@pytest.mark.parametrize("name", OURS)
def test_a_provider_takes_each_field_that_it_lacks(name: str):
    """In Megatron's section, with one value, or as an alias."""
    cls = OURS[name]
    taken = {*megatron_fields(), *cls.fixed_values, *dir(cls)}
    assert UPSTREAM[name].keys() - own_defaults(name).keys() - taken == set()


def test_no_reason_is_empty_and_none_is_for_an_unknown_class():
    for reasons in REASONS.values():
        assert reasons.keys() <= UPSTREAM.keys()
        assert all(text for of_class in reasons.values() for text in of_class.values())
