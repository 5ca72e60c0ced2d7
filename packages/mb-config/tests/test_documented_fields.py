"""Comparison of names, types and defaults of every field with the documentation; each difference has a reason."""

import ast
import inspect
import json
import signal
from dataclasses import MISSING, fields
from itertools import pairwise
from pathlib import Path

import pytest

import mb_config

DOCUMENTED = json.loads((Path(__file__).parent / "documented_fields.json").read_text(encoding="utf-8"))
CONTAINER = DOCUMENTED.pop("ConfigContainer")

OWN = ("perf",)
"""Fields of the container that are this package's own."""
ADDED = {
    "SchedulerConfig": {"max_lr", "min_lr"},
    "TrainingConfig": {"early_stop_metric", "early_stop_min_delta", "early_stop_mode", "early_stop_patience"},
}
"""Fields of sections that are this package's own."""
DIFFERENCES = {
    "DistributedInitConfig.local_rank": "0 until the trainer sets it: constructors read no environment variables",
    "DistributedDataParallelConfig.suggested_communication_unit_size": "null is its default, so null is allowed",
    "SchedulerConfig.lr_warmup_steps": "may be a fraction, as Megatron-Bridge computes it from lr_warmup_fraction",
    "TrainingConfig.manual_gc_eval": "a number is accepted too; as in Megatron, any but 0 is true",
    "OptimizerConfig.timers": "the annotation includes the return type",
    "OptimizerConfigOverrideProviderContext.model": "Any: the section needs no Megatron to be imported",
}
OTHER_PACKAGES = {
    "rerun_state_machine": "None disables it: the section belongs to another package",
    "profiling": "None disables it: the section belongs to another package",
}


def described(item):
    """Return the type as text and the default as in a file."""
    kind = str(item.type).replace("'", '"')
    if item.default is MISSING and item.default_factory is MISSING:
        return [kind, "<required>"]
    default = item.default_factory() if item.default is MISSING else item.default
    if isinstance(default, signal.Signals):
        return [kind, default.name]
    return [kind, list(default) if isinstance(default, tuple) else default]


@pytest.mark.parametrize("name", DOCUMENTED)
def test_names(name):
    names = {item.name for item in fields(getattr(mb_config, name))}
    assert names - ADDED.get(name, set()) == {*DOCUMENTED[name]}


@pytest.mark.parametrize("name", DOCUMENTED)
def test_every_field_has_a_docstring(name):
    body = ast.parse(inspect.getsource(getattr(mb_config, name))).body[0].body
    silent = [
        field.target.id
        for field, text in pairwise([*body, None])
        if isinstance(field, ast.AnnAssign) and not isinstance(text, ast.Expr)
    ]
    assert silent == []


@pytest.mark.parametrize("name", DOCUMENTED)
def test_types_and_defaults(name):
    ours = {item.name: described(item) for item in fields(getattr(mb_config, name))}
    different = {f"{name}.{key}" for key, fact in DOCUMENTED[name].items() if ours[key] != fact}
    assert different == {path for path in DIFFERENCES if path.startswith(f"{name}.")}


def test_sections_of_the_container():
    items = {item.name: item for item in fields(mb_config.ConfigContainer) if item.init}
    assert [name for name in items if name not in OWN] == list(CONTAINER)
    required = {name for name, item in items.items() if described(item)[1] == "<required>"}
    assert required == {name for name, default in CONTAINER.items() if default == "<required>"}


def test_sections_with_defaults():
    items = {item.name: item for item in fields(mb_config.ConfigContainer) if item.init}
    made = {f"{type(described(items[name])[1]).__name__}()": name for name in items}
    wanted = {default: name for name, default in CONTAINER.items() if str(default).endswith("()")}
    assert {name for default, name in wanted.items() if made.get(default) != name} == set(OTHER_PACKAGES)
