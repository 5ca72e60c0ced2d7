"""Conversion to plain data and back, with an error for every mistake."""

import json
import typing
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, make_dataclass, replace
from enum import Enum
from fractions import Fraction
from typing import Any, Final, Protocol, TypedDict

import dataclasses_json
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from mb_config import (
    ConfigContainer,
    ConfigFileError,
    ConfigFileNotFoundError,
    ConfigReadError,
    ManyReadErrors,
    MissingKeyError,
    OptimizerConfig,
    Provenance,
    TargetError,
    TrainingConfig,
    UnknownKeyError,
    WrongTypeError,
    apply_overrides,
    from_dict,
    given_fields,
    to_dict,
)
from mb_config.container.codec import listed_targets
from mb_config.container.yaml_file import dump_yaml, read_yaml


def test_yaml_round_trip_of_a_full_config(make, kinds, bf16, tmp_path):
    config = make(
        dataset=kinds["TextData"](seq_length=64, paths=["a", "b"], weights={"a": 0.5}),
        peft=kinds["Adapter"](rank=8, targets=("q", "k")),
        mixed_precision=bf16,
        env_vars={"NCCL_DEBUG": "INFO", "N": 3},
    )
    config.to_yaml(tmp_path / "run.yaml")
    assert kinds["Config"].from_yaml(tmp_path / "run.yaml") == config


def test_a_class_is_written_only_if_it_does_not_follow_from_the_type(make, kinds):
    data = make(peft=kinds["Adapter"](rank=1)).to_dict()
    assert data["dataset"] == {"_target_": f"{kinds['MockData'].__module__}.MockData", "seq_length": 64}
    assert data["peft"] == {"rank": 1, "targets": ["linear_qkv"]}


def test_without_defaults_only_fields_that_were_set(make):
    data = make(logger=None).to_dict(defaults=False)
    assert data["train"] == {"micro_batch_size": 2, "global_batch_size": 8, "train_iters": 100}
    assert "ddp" not in data


def test_computed_fields_are_not_written(make):
    config = make()
    config.scheduler.lr_decay_steps = config.data_parallel_size = 3
    data = config.to_dict()
    assert "lr_decay_steps" not in data["scheduler"]
    assert "data_parallel_size" not in data


def test_reading_records_the_fields_of_the_file():
    assert given_fields(from_dict(TrainingConfig, {"train_iters": None})) == {"train_iters"}


@settings(deadline=None)
@given(
    st.builds(
        OptimizerConfig,
        lr=st.none() | st.floats(0, 1),
        optimizer=st.text(),
        hysteresis=st.integers(-(2**63), 2**63 - 1),
        bf16=st.booleans(),
    )
)
def test_any_section_survives_yaml(section):
    text = yaml.safe_dump(to_dict(section))
    assert from_dict(OptimizerConfig, yaml.safe_load(text)) == section


def test_a_function_cannot_be_written():
    with pytest.raises(WrongTypeError, match="timers: expected a value that a file can hold"):
        to_dict(OptimizerConfig(timers=print))


def test_all_mistakes_are_reported_together(make, kinds):
    data = make().to_dict()
    data["train"] |= {"train_iter": 3, "lr": 1.0, "manual_gc": 1}
    del data["model"]
    data["extra"] = {}
    with pytest.raises(ManyReadErrors) as caught:
        kinds["Config"].from_dict(data)
    assert sorted(str(error) for error in caught.value.errors) == [
        "extra: no such field",
        "model: is required",
        "train.lr: no such field; did you mean optimizer.lr?",
        "train.manual_gc: expected bool, not 1",
        "train.train_iter: no such field; did you mean train.train_iters?",
    ]


def test_errors_subclass_those_that_python_raises():
    with pytest.raises(UnknownKeyError) as unknown:
        from_dict(TrainingConfig, {"train_itres": 3})
    assert isinstance(unknown.value, KeyError)
    assert unknown.value.nearest == ("train_iters",)
    assert str(unknown.value) == "train_itres: no such field; did you mean train_iters?"
    with pytest.raises(TypeError, match="global_batch_size: expected int or null, not True"):
        from_dict(TrainingConfig, {"global_batch_size": True})


def test_a_missing_key_is_named(kinds):
    with pytest.raises(MissingKeyError, match="rank: is required"):
        from_dict(kinds["Adapter"], {})


def load(make, kinds, dataset, **targets):
    return kinds["Config"].from_dict({**make().to_dict(), "dataset": dataset}, targets).dataset


def test_classes_of_the_type_are_found_by_their_bare_name(make, kinds):
    assert load(make, kinds, {"_target_": "MockData", "seq_length": 3}) == kinds["MockData"](seq_length=3)


def test_a_subclass_needs_to_be_in_the_allow_list(make, kinds):
    class Own(kinds["MockData"]):
        pass

    assert type(load(make, kinds, {"_target_": "my.Own"}, **{"my.Own": Own})) is Own
    with pytest.raises(
        TargetError, match=r"dataset._target_: 'my.Own' is not allowed\. Use one of MockData, TextData"
    ):
        load(make, kinds, {"_target_": "my.Own"})


@pytest.mark.parametrize("section", ["dataset", "tokenizer", "peft", "mixed_precision"])
def test_a_file_cannot_name_a_function(make, kinds, section):
    with pytest.raises(TargetError, match=r"'os.system' is not allowed"):
        kinds["Config"].from_dict({**make().to_dict(), section: {"_target_": "os.system"}})


@pytest.mark.parametrize("target", [[1], 1, {"a": 1}, True])
def test_a_target_that_is_not_text_is_an_error_with_its_path(make, kinds, target):
    with pytest.raises(TargetError, match=r"^dataset"):
        load(make, kinds, {"_target_": target})


def test_the_nearest_classes_come_first(make, kinds):
    with pytest.raises(TargetError, match=r"not allowed\. Did you mean MockData\? Use one of MockData, Text"):
        load(make, kinds, {"_target_": "my.MokData"})


def test_a_long_list_of_classes_is_truncated():
    names = [f"a.Class{number:02}" for number in range(30)]
    assert listed_targets(names).endswith("a.Class07 and 22 more")
    assert listed_targets(["a.B", "B"]) == "one of B"


def test_a_field_of_a_different_class_of_the_section_reports_that_class(make, kinds):
    config = kinds["Config"].from_dict(
        {**make().to_dict(), "dataset": {"_target_": "MockData", "seq_length": 3}}
    )
    with pytest.raises(UnknownKeyError, match=r"only TextData has it\. Write _target_: TextData in dataset$"):
        apply_overrides(config, ["dataset.paths=[a]"])


def test_a_choice_of_classes_needs_a_target(make, kinds):
    with pytest.raises(TargetError, match="dataset: needs _target_, one of MockData, TextData"):
        load(make, kinds, {"seq_length": 3})


def test_a_target_of_a_wrong_class_is_rejected(make, kinds):
    with pytest.raises(TargetError, match="is not a TextData or MockData"):
        load(make, kinds, {"_target_": "m.Model"}, **{"m.Model": kinds["Model"]})


def test_an_untyped_section_stays_a_mapping_or_takes_an_allowed_class(make, kinds):
    data = {**make().to_dict(), "tokenizer": {"path": "x"}, "checkpoint": {"_target_": "A", "rank": 2}}
    config = kinds["Config"].from_dict(data, {"A": kinds["Adapter"]})
    assert (config.tokenizer, config.checkpoint) == ({"path": "x"}, kinds["Adapter"](rank=2))
    assert config.to_dict()["checkpoint"]["_target_"].endswith(".Adapter")


def test_errors_in_a_file_carry_the_line(kinds, tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("train:\n  train_iters: abc\n")
    with pytest.raises(ManyReadErrors) as caught:
        kinds["Config"].from_yaml(file)
    assert f"{file}:2: train.train_iters: expected int or null, not 'abc'" in str(caught.value)


def test_provenance_has_file_and_line(make, kinds, tmp_path):
    file, provenance = tmp_path / "run.yaml", Provenance()
    make().to_yaml(file)
    kinds["Config"].from_yaml(file, provenance=provenance)
    assert provenance.origin("rng.seed") == f"{file}:2"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "invalid YAML"),
        ("- 1", "expected a mapping at the top level, not list"),
        ("a: 1\nb: 2\na: 3", ":3: a: given twice, first on line 1"),
        ("a: \x00", "invalid YAML"),
        ("a: !!int x", "invalid YAML: invalid literal for int"),
        ("a: &a [*a]", r":1: a\[0\]: contains itself through an alias"),
        ("a: &a {b: *a}", ":1: a.b: contains itself through an alias"),
        ("a: " + "[" * 2000 + "]" * 2000, ":1: invalid YAML: nested deeper than 64 levels"),
        (
            "\n".join(f"a{i}: &a{i} [{f'*a{i - 1}, ' * 9}1]" if i else "a0: &a0 [1]" for i in range(9)),
            "aliases make more than 100000 values",
        ),
        (
            "\n".join(f"a{i}: &a{i} [*a{i - 1}]" if i else "a0: &a0 [1]" for i in range(99)),
            "is nested deeper than 64 levels",
        ),
    ],
)
def test_invalid_yaml_is_rejected(tmp_path, text, message):
    (tmp_path / "run.yaml").write_text(text)
    with pytest.raises(ConfigFileError, match=message):
        ConfigContainer.from_yaml(tmp_path / "run.yaml")


def test_merged_keys_have_their_own_lines(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("x: &x\n  rank: 3\n  targets: [a]\npeft:\n  <<: *x\n  rank: 4\n")
    lines = read_yaml(file).lines
    assert (lines["peft.rank"], lines["peft.targets"], lines["x.rank"]) == (6, 3, 2)


def test_data_that_contains_itself_is_rejected(make):
    data = make().to_dict()
    data["tokenizer"] = loop = {}
    loop["more"] = [loop]
    with pytest.raises(ConfigReadError, match=r"tokenizer.more\[0\]: contains itself"):
        ConfigContainer.from_dict(data)
    with pytest.raises(ConfigReadError, match=r"tokenizer.more\[0\]: contains itself"):
        make(tokenizer=loop).to_dict()


def test_deeply_nested_data_is_rejected(make):
    deep = []
    for _ in range(2000):
        deep = [deep]
    with pytest.raises(ConfigReadError, match="is nested deeper than 64 levels"):
        make(tokenizer={"a": deep}).to_dict()


def test_a_file_that_is_not_text_is_an_error(tmp_path):
    (tmp_path / "run.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigFileError, match=r"run.yaml: is not UTF-8 text"):
        read_yaml(tmp_path / "run.yaml")


def test_a_missing_file_and_a_directory(tmp_path):
    with pytest.raises(ConfigFileNotFoundError, match="no such file"):
        ConfigContainer.from_yaml(tmp_path / "run.yaml")
    with pytest.raises(ConfigFileError):
        ConfigContainer.from_yaml(tmp_path)


@dataclass(kw_only=True)
class Car:
    wheels: int
    fuel: str = "petrol"


@dataclass(kw_only=True)
class Boat:
    wheels: int = 0
    sails: int = 1
    mast: int


@dataclass(kw_only=True)
class Garage:
    vehicle: Car | Boat


@pytest.mark.parametrize(
    ("data", "cls"),
    [({"wheels": 4}, Car), ({"wheels": 4, "fuel": "diesel"}, Car), ({"mast": 1, "sails": 2}, Boat)],
)
def test_the_only_class_that_fits_the_keys_needs_no_target(data, cls):
    assert type(from_dict(Garage, {"vehicle": data}).vehicle) is cls


@dataclass(kw_only=True)
class Cart:
    wheels: int


@dataclass(kw_only=True)
class Shed:
    vehicle: Car | Cart


def test_keys_that_fit_several_classes_need_a_target():
    with pytest.raises(TargetError, match="vehicle: needs _target_"):
        from_dict(Shed, {"vehicle": {"wheels": 4}})


def test_a_misspelled_key_is_reported_if_only_one_class_has_all_required_fields():
    with pytest.raises(UnknownKeyError, match=r"vehicle\.fule: no such field"):
        from_dict(Garage, {"vehicle": {"wheels": 4, "fule": "gas"}})


class Colour(Enum):
    RED = 1


class Unchecked(Protocol):
    def size(self): ...


class _Name(TypedDict):
    name: str


class Named(_Name, total=False):
    sizes: list[int]


@dataclass
class Containers:
    by_number: dict[int, str] = field(default_factory=dict)
    by_share: dict[float, str] = field(default_factory=dict)
    by_colour: dict[Colour, int] = field(default_factory=dict)
    by_any: dict = field(default_factory=dict)
    mixed: set[Any] = field(default_factory=set)
    items: set = field(default_factory=set)
    fixed_items: frozenset = frozenset()
    by_typing: typing.Set = field(default_factory=set)  # noqa: UP006
    sequence: typing.Tuple = ()  # noqa: UP006
    named: Named = field(default_factory=lambda: {"name": "a"})
    fixed: Final[int] = 1
    sized: Unchecked | None = None


FULL = Containers(
    by_number={1: "a", -2: "b"},
    by_share={0.5: "x"},
    by_colour={Colour.RED: 3},
    by_any={1: "a", "1": "b"},
    mixed={1, "a", 2.5, None},
    items={1, 2},
    fixed_items=frozenset({"a"}),
    by_typing={"b"},
    sequence=(1, 2),
    named={"name": "b", "sizes": [1]},
    fixed=5,
)


def test_containers_survive_plain_data_and_yaml():
    assert from_dict(Containers, to_dict(FULL)) == FULL
    assert from_dict(Containers, yaml.safe_load(dump_yaml(to_dict(FULL)))) == FULL


@dataclass
class ReadOnly:
    items: AbstractSet = frozenset()


def test_an_abstract_set_survives_plain_data():
    assert from_dict(ReadOnly, to_dict(ReadOnly(items={1}))) == ReadOnly(items=frozenset({1}))


def test_keys_survive_json_where_they_are_not_ambiguous():
    some = replace(FULL, by_any={})
    assert from_dict(Containers, json.loads(json.dumps(to_dict(some)))) == some


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"by_number": {"one": "a"}}, "by_number.one: expected int, not 'one'"),
        ({"by_number": {"01": "a"}}, "by_number.01: expected int, not '01'"),
        ({"by_colour": {"BLUE": 1}}, "by_colour.BLUE: expected Colour, not 'BLUE'"),
        ({"named": {"sizes": []}}, "named: expected Named, a mapping of name, sizes"),
        ({"named": {"name": "a", "other": 1}}, "named: expected Named, a mapping of name, sizes"),
        ({"named": {"name": "a", "sizes": ["b"]}}, r"named.sizes\[0\]: expected int, not 'b'"),
        ({"fixed": "x"}, "fixed: expected int, not 'x'"),
        ({"items": [[1]]}, r"items: expected set, not \[\[1\]\]"),
        ({"mixed": [{"a": 1}]}, "mixed: expected set of Any, not"),
        ({"items": "ab"}, "items: expected set, not 'ab'"),
    ],
)
def test_what_does_not_fit_a_container_is_rejected(data, expected):
    with pytest.raises(ConfigReadError, match=expected):
        from_dict(Containers, data)


def test_a_key_that_no_file_holds_is_rejected():
    section = make_dataclass("S", [("free", dict, field(default_factory=dict))])
    with pytest.raises(WrongTypeError, match="free: expected a key that a file can hold"):
        to_dict(section({b"a": 3}))
    with pytest.raises(WrongTypeError, match="free: expected a key that a file can hold"):
        to_dict(section({(1, 2): 3}))


@dataclass
class Converted:
    share: Fraction = Fraction(1, 3)
    rest: Fraction | None = None
    when: int = field(
        default=60,
        metadata=dataclasses_json.config(
            encoder=lambda minutes: f"{minutes} min", decoder=lambda text: int(text[:-4])
        ),
    )


@pytest.fixture
def fractions(monkeypatch):
    monkeypatch.setitem(dataclasses_json.global_config.encoders, Fraction, str)
    monkeypatch.setitem(dataclasses_json.global_config.decoders, Fraction, Fraction)


def test_converters_of_dataclasses_json_are_used(fractions):
    section = Converted(share=Fraction(2, 7), rest=Fraction(5), when=90)
    assert to_dict(section) == {"share": "2/7", "rest": "5", "when": "90 min"}
    assert from_dict(Converted, to_dict(section)) == section
    assert from_dict(Converted, {"rest": None, "when": 5}) == Converted(when=5)


@dataclasses_json.dataclass_json
@dataclass
class Nested:
    n: int = 1


@dataclasses_json.dataclass_json(undefined=dataclasses_json.Undefined.RAISE)
@dataclass
class Nesting:
    flag: int = 1
    inner: Nested = field(default_factory=Nested)


@pytest.mark.filterwarnings("ignore:'NoneType' object value:RuntimeWarning")
def test_dataclasses_json_alone_checks_neither_nested_keys_nor_types():
    assert Nesting.from_dict({"inner": {"m": 3}}) == Nesting()
    assert Nesting.from_dict({"flag": True}).flag is True
    assert Nesting.from_dict({"flag": None}).flag is None
    with pytest.raises(ValueError, match=r"^invalid literal for int\(\) with base 10: 'x'$"):
        Nesting.from_dict({"inner": {"n": "x"}})
    with pytest.raises(ManyReadErrors) as caught:
        from_dict(Nesting, {"inner": {"m": 3}, "flag": True})
    assert [error.path for error in caught.value.errors] == ["inner.m", "flag"]


def test_a_value_that_a_decoder_rejects_is_an_error_with_its_path(fractions):
    with pytest.raises(ManyReadErrors) as caught:
        from_dict(Converted, {"share": "a third", "when": "noon"})
    assert [str(error) for error in caught.value.errors] == [
        "share: expected Fraction (Invalid literal for Fraction: 'a third'), not 'a third'",
        "when: expected int (invalid literal for int() with base 10: ''), not 'noon'",
    ]


def test_overrides_are_decoded(fractions):
    section = make_dataclass("Root", [("part", Converted)])(Converted())
    apply_overrides(section, ["part.share=2/7", "part.when=90 min"])
    assert section.part == Converted(share=Fraction(2, 7), when=90)


def test_a_field_with_another_name_in_the_file_is_rejected():
    renamed = field(default=1, metadata=dataclasses_json.config(field_name="n"))
    section = make_dataclass("Renamed", [("number", int, renamed)])
    for convert in (lambda: to_dict(section()), lambda: from_dict(section, {"number": 2})):
        with pytest.raises(ConfigReadError, match=r"number: .* sets letter_case; only encoder and decoder"):
            convert()
