"""Sections of all packages: unknown field names are rejected, values of a wrong type are reported."""

import copy
import pickle
from dataclasses import MISSING, fields, is_dataclass, replace
from pathlib import Path

import pytest

from mb_config import (
    ConfigError,
    ConfigReadError,
    Provenance,
    WrongTypeError,
    apply_overrides,
    given_fields,
)
from mb_schema.value_types import dataclasses_of, hints, options
from mb_trainer import config as trainer
from mb_trainer.recipes import RECIPES
from mb_trainer.run.preflight import resolve_and_check

BASES = ("StrictFields", "Section")
"""Base classes, of which there are no objects."""


def section_classes():
    """Return the dataclasses in the types of the container's fields, recursively, with their bases and subclasses."""
    found, queue = set(), [trainer.ConfigContainer]
    while queue:
        cls = queue.pop()
        if cls in found or not is_dataclass(cls) or not cls.__module__.startswith("mb_"):
            continue
        found.add(cls)
        queue += [*cls.__subclasses__(), *cls.__bases__]
        queue += [inner for hint in hints(cls).values() for inner in nested(hint)]
    return sorted(
        (cls for cls in found if issubclass(cls, strict(cls)) and cls.__name__ not in BASES),
        key=lambda cls: (cls.__module__, cls.__name__),
    )


def nested(annotation):
    for option in options(annotation):
        yield from dataclasses_of(option)
        for argument in getattr(option, "__args__", ()):
            yield from nested(argument)


def strict(cls):
    """Return the base class of `cls`'s package that rejects unknown names. Mixins of fields are used only with it."""
    bases = [base for base in cls.__mro__ if base.__name__ == "StrictFields"]
    return bases[0] if bases else Path


CLASSES = section_classes()


def build(cls):
    if getattr(cls, "__abstractmethods__", ()):
        cls = type(cls.__name__, (cls,), dict.fromkeys(cls.__abstractmethods__))
    needed = [f for f in fields(cls) if f.init and f.default is MISSING and f.default_factory is MISSING]
    return cls(**{f.name: None for f in needed})


def test_the_sections_of_every_package_are_among_them():
    packages = {cls.__module__.partition(".")[0] for cls in CLASSES}
    assert packages == {
        "mb_checkpoint",
        "mb_config",
        "mb_data",
        "mb_metrics",
        "mb_models",
        "mb_overlap",
        "mb_resilience",
        "mb_trainer",
    }
    container = hints(trainer.ConfigContainer)
    sections = {cls for hint in container.values() for cls in dataclasses_of(hint)}
    assert sections <= set(CLASSES)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_a_name_that_is_no_field_is_rejected(cls):
    section = build(cls)
    for field in fields(section):
        setattr(section, field.name, getattr(section, field.name))
        with pytest.raises(AttributeError, match=f"{field.name}_x: .* has no such field") as caught:
            setattr(section, f"{field.name}_x", 1)
        assert len(field.name) < 5 or field.name in caught.value.nearest or len(caught.value.nearest) == 3
        assert not hasattr(section, f"{field.name}_x")
    with pytest.raises(TypeError, match=r"no_such_field_here: .* has no such field"):
        cls(no_such_field_here=1)
    section._note = 1
    assert section._note == 1


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_sections_can_be_copied(cls):
    section = build(cls)
    assert replace(section) == section == copy.copy(section) == copy.deepcopy(section)
    if type(section) is cls:
        assert pickle.loads(pickle.dumps(section)) == section


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_section_and_every_copy_of_it_knows_which_fields_were_set(cls):
    section = build(cls)
    required = given_fields(section)
    names = [item.name for item in fields(section) if item.init]
    passed = [name for name in cls.__dataclass_fields__ if name != "checks_types"]
    assert passed[0] == "_given"  # so that replace() passes it before the values that it copies
    for name in {*names[:1], *names[-1:]}:
        same = getattr(section, name)
        assert given_fields(replace(section, **{name: same})) == required | {name}
        other = copy.copy(section)
        setattr(other, name, same)
        copies = [copy.copy(other), copy.deepcopy(other), replace(other)]
        copies += [pickle.loads(pickle.dumps(other))] if type(section) is cls else []
        assert {given_fields(each) for each in copies} == {required | {name}}
    assert given_fields(replace(section, **dict.fromkeys(reversed(names)))) >= {*names}
    assert given_fields(section) == required


WRONG = (
    ("train.global_batch_size", "eight"),
    ("train.train_iters", True),
    ("optimizer.lr", "1e-3"),
    ("model.num_layers", 2.5),
    ("model.recompute_modules", "core_attn"),
    ("checkpoint.save_interval", "5"),
    ("logger.log_interval", None),
    ("dataset.seq_length", [1]),
    ("validation.eval_iters", {"a": 1}),
    ("ddp.bucket_size", 2**70),
    ("rerun_state_machine.spiky_loss_factor", "x"),
    ("mixed_precision", 3),
    ("tokenizer", "bytes"),
    ("peft", 3),
)


@pytest.mark.parametrize(("path", "value"), WRONG, ids=lambda item: str(item)[:40])
def test_a_value_of_a_wrong_type_is_reported_as_from_a_file(path, value):
    config = RECIPES["gpt_tiny"].build()
    section, _, name = path.rpartition(".")
    setattr(getattr(config, section) if section else config, name, value)
    with pytest.raises(ConfigError) as caught:
        resolve_and_check(config, world_size=1, provenance=Provenance.of(config))
    problems = [problem for problem in caught.value.problems if problem.id == "TY01"]
    assert [problem.fields for problem in problems] == [(path,)]
    assert problems[0].message.startswith("expected ")


def test_the_message_is_the_one_of_the_command_line():
    config = RECIPES["gpt_tiny"].build()
    with pytest.raises(WrongTypeError) as read:
        apply_overrides(RECIPES["gpt_tiny"].build(), ["train.global_batch_size=eight"])
    config.train.global_batch_size = "eight"
    (problem,) = config.check()
    assert (problem.fields, problem.message) == (("train.global_batch_size",), read.value.message)
    assert isinstance(read.value, ConfigReadError)


@pytest.mark.parametrize("name", RECIPES)
def test_the_values_of_every_recipe_have_their_types(name):
    assert [problem for problem in RECIPES[name].build().check() if problem.id == "TY01"] == []


def test_a_path_is_taken_for_text():
    config = RECIPES["gpt_tiny"].build()
    config.checkpoint.save = Path("runs")
    assert config.check() == []
