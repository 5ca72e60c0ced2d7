"""Changes from command lines and partial files."""

import re
import signal
from dataclasses import InitVar, dataclass, field
from enum import Enum
from typing import Any, ClassVar, NewType, TypedDict

import pytest

from mb_config import (
    ConfigReadError,
    ManyReadErrors,
    MissingKeyError,
    OverrideError,
    Provenance,
    UnknownKeyError,
    UnknownPrecisionError,
    WrongTypeError,
    apply_overrides,
    apply_yaml,
    from_dict,
    get_mixed_precision_config,
    runtime_config_update,
    show,
)
from mb_config.errors import InterpolationError


def after(config, *overrides, **arguments):
    apply_overrides(config, overrides, **arguments)
    return config


def test_exactly_the_named_fields_change(make):
    before, config = make(), make()
    provenance = apply_overrides(
        config, ["train.train_iters=7", "model.num_layers=2"], provenance=Provenance()
    )
    assert (config.train.train_iters, config.model.num_layers) == (7, 2)
    config.train.train_iters, config.model.num_layers = 100, 4
    assert config == before
    assert provenance.origins == {"train.train_iters": "command line", "model.num_layers": "command line"}


@pytest.mark.parametrize(
    ("override", "path", "value"),
    [
        ("optimizer.lr=1e-3", "optimizer.lr", 1e-3),
        ("optimizer.lr=3e-4", "optimizer.lr", 3e-4),
        ("optimizer.clip_grad=1", "optimizer.clip_grad", 1.0),
        ("train.exit_interval=null", "train.exit_interval", None),
        ("train.exit_signal=SIGINT", "train.exit_signal", signal.SIGINT),
        ("train.iterations_to_skip=[3,4]", "train.iterations_to_skip", [3, 4]),
        ("logger.name=2024", "logger.name", "2024"),
        ("logger.name='a b'", "logger.name", "a b"),
        ("logger.name=/home/jürgen/тест-1", "logger.name", "/home/jürgen/тест-1"),
        ("logger.name='ü zu252z'", "logger.name", "ü zu252z"),
        ("+env_vars.NAME=é", "env_vars", {"NAME": "é"}),
        ("++train.train_iters=5", "train.train_iters", 5),
        ("+env_vars.NCCL_DEBUG=INFO", "env_vars", {"NCCL_DEBUG": "INFO"}),
        ("train={train_iters:5,global_batch_size:4}", "train.global_batch_size", 4),
        ("+train.exit_interval=5", "train.exit_interval", 5),
        ("~train.train_iters", "train.train_iters", None),
        ("~train.train_iters=100", "train.train_iters", None),
        ("~scheduler.lr_decay_style", "scheduler.lr_decay_style", "linear"),
        ("~env_vars", "env_vars", {}),
        ("~comm_overlap", "comm_overlap", None),
    ],
)
def test_override(make, override, path, value):
    found = after(make(), override)
    for key in path.split("."):
        found = getattr(found, key)
    assert (found, type(found)) == (value, type(value))


def test_a_mapping_that_is_spelled_out_may_have_new_keys(make, kinds):
    config = make(dataset=kinds["TextData"](seq_length=8, weights={"books": 1.0}), env_vars={"A": "1"})
    apply_overrides(config, ["dataset.weights={books: 0.5, web: 0.5}"])
    assert config.dataset.weights == {"books": 0.5, "web": 0.5}
    for override in ("dataset.weights.wbe=1", "env_vars={B: 2}"):
        with pytest.raises(UnknownKeyError, match=r"no such field"):
            apply_overrides(config, [override])


@pytest.mark.parametrize(
    ("override", "error", "message"),
    [
        ("train.train_iters=abc", WrongTypeError, "train.train_iters: expected int or null, not 'abc'"),
        ("train.train_iters=1.5", WrongTypeError, "train.train_iters: expected int or null, not 1.5"),
        ("train.train_iters=true", WrongTypeError, "train.train_iters: expected int or null, not True"),
        ("train.lr=1", UnknownKeyError, "train.lr: no such field; did you mean optimizer.lr?"),
        ("lr=1", UnknownKeyError, "lr: no such field; did you mean optimizer.lr?"),
        (
            "model.tp=2",
            UnknownKeyError,
            "model.tp: no such field; did you mean model.tensor_model_parallel_size?",
        ),
        (
            "warmup_steps=2",
            UnknownKeyError,
            "warmup_steps: no such field; did you mean scheduler.lr_warmup_iters?",
        ),
        (
            "train.train_itres=1",
            UnknownKeyError,
            "train.train_itres: no such field; did you mean train.train_iters?",
        ),
        ("env_vars.A=1", UnknownKeyError, "env_vars.A: no such field; write +env_vars.A=... to add it"),
        (
            "+train.train_iters=1",
            OverrideError,
            "train.train_iters: is already set; use = or ++ instead of +",
        ),
        ("+train.nothing=1", UnknownKeyError, "train.nothing: no such field"),
        ("~model", OverrideError, "model: cannot be deleted, because it is required"),
        ("~train.nothing", UnknownKeyError, "train.nothing: no such field"),
        ("~train.train_iters=5", OverrideError, "train.train_iters: is 100, not 5, so it is not deleted"),
        (
            "train.train_iters=1,2",
            OverrideError,
            "train.train_iters: 'train.train_iters=1,2' has several values, but a run takes one",
        ),
        ("db@x=1", OverrideError, "'db@x=1' names a Hydra group; write section.field=value"),
        ("rng=3", WrongTypeError, "rng: expected RNGConfig, not 3"),
        ("peft.targets=[a]", MissingKeyError, "peft.rank: is required"),
        (
            "mixed_precision=bf16",
            UnknownPrecisionError,
            "mixed_precision: unknown recipe 'bf16'. Use one of bf16_mixed",
        ),
    ],
)
def test_overrides_that_cannot_be_applied_are_rejected(make, override, error, message):
    with pytest.raises(error) as caught:
        after(make(), override)
    assert isinstance(caught.value, ConfigReadError)
    assert str(caught.value).partition("command line: ")[2].startswith(message)


def test_a_text_that_is_not_an_override(make):
    with pytest.raises(OverrideError, match=r"cannot parse the override 'a=\['"):
        after(make(), "a=[")
    with pytest.raises(OverrideError, match="cannot parse the override 'a=999"):
        after(make(), "a=" + 5000 * "9")


def test_all_errors_are_reported_together(make):
    with pytest.raises(ManyReadErrors) as caught:
        after(make(), "train.lr=1", "rng.seed=x", "train.train_iters=5")
    assert [error.path for error in caught.value.errors] == ["train.lr", "rng.seed"]


def test_setting_a_field_of_a_section_that_is_none_creates_the_section(make, kinds):
    assert after(make(), "peft.rank=4").peft == kinds["Adapter"](rank=4)


def test_sections_by_name(make, kinds):
    section_factories = {"peft": lambda name: kinds["Adapter"](rank=int(name[4:]))}
    assert after(make(), "peft=lora16", section_factories=section_factories).peft == kinds["Adapter"](rank=16)


def test_a_precision_name_is_checked_and_kept(make):
    assert after(make(), "mixed_precision=bf16-mixed").mixed_precision == "bf16-mixed"


def test_a_field_of_a_named_precision_changes_only_that(make):
    expected = get_mixed_precision_config("bf16_mixed")
    expected.hysteresis = 3
    config = after(make(mixed_precision="bf16_mixed"), "mixed_precision.hysteresis=3")
    assert config.mixed_precision == expected


def test_a_different_class_for_a_section(make, kinds):
    config = after(make(), "dataset={_target_:TextData,seq_length:32,paths:[a]}")
    assert config.dataset == kinds["TextData"](seq_length=32, paths=["a"])


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_different_class_takes_the_fields_that_are_named_before_and_after_it(make, kinds, place):
    others = ["dataset.seq_length=32", "dataset.paths=[a]"]
    provenance = Provenance()
    config = make()
    overrides = [*others[:place], "dataset._target_=TextData", *others[place:], "train.train_iters=7"]
    apply_overrides(config, overrides, provenance=provenance)
    assert config.dataset == kinds["TextData"](seq_length=32, paths=["a"])
    assert (config.train.train_iters, provenance.origins["dataset.seq_length"]) == (7, "command line")


def test_a_different_class_without_a_field_that_it_requires_is_one_error(make):
    with pytest.raises(MissingKeyError, match=r"dataset\.seq_length: is required"):
        after(make(), "dataset._target_=TextData", "dataset.paths=[a]")


def test_a_key_of_a_mapping_is_deleted(make):
    assert after(make(env_vars={"A": 1, "B": 2}), "~env_vars.A").env_vars == {"B": 2}


def test_untyped_mappings_accept_any_key(make):
    assert after(make(tokenizer={}), "tokenizer.path=x", "tokenizer.more.deep=1").tokenizer == {
        "path": "x",
        "more": {"deep": 1},
    }


def test_a_partial_file_merges(make, tmp_path):
    file = tmp_path / "more.yaml"
    file.write_text("train:\n  train_iters: 7\noptimizer:\n  lr: 1e-4\nenv_vars:\n  A: 1\npeft:\n  rank: 2\n")
    config = make(env_vars={"B": 2})
    provenance = apply_yaml(config, file, provenance=Provenance())
    assert (config.train.train_iters, config.train.global_batch_size, config.optimizer.lr) == (7, 8, 1e-4)
    assert (config.env_vars, config.peft.rank) == ({"B": 2, "A": 1}, 2)
    assert provenance.origins["optimizer.lr"] == f"{file}:4"
    assert provenance.origins["peft.rank"] == f"{file}:8"


def test_errors_in_a_partial_file_have_the_line(make, tmp_path):
    file = tmp_path / "more.yaml"
    file.write_text("train:\n  train_iters: 7\n  lr: 3\n")
    with pytest.raises(UnknownKeyError) as caught:
        apply_yaml(make(), file)
    assert str(caught.value) == f"{file}:3: train.lr: no such field; did you mean optimizer.lr?"


def test_fields_set_in_code_are_in_the_provenance(make):
    provenance = apply_overrides(make(), ["rng.seed=5"])
    assert provenance.origin("train.train_iters") == "code"
    assert provenance.origin("rng.seed") == "command line"
    assert provenance.origin("train.exit_interval") == "default"


def test_show_with_origins_is_yaml_that_loads_back(make, kinds, tmp_path):
    config = make(peft=kinds["Adapter"](rank=3))
    config.logger.comet_api_key = "secret"
    text = show(config, apply_overrides(config, ["rng.seed=5"]), origin=True)
    (tmp_path / "shown.yaml").write_text(text)
    loaded = kinds["Config"].from_yaml(tmp_path / "shown.yaml")
    config.logger.comet_api_key = None
    assert loaded == config
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines[:3] == ["rng:", "seed: 5 # command line", "te_rng_tracker: false # default"]
    assert "secret" not in text


def test_fields_of_a_section_that_was_set_by_name_have_its_origin(make):
    config = make()
    known = apply_overrides(
        config, ["mixed_precision=bf16_mixed", "mixed_precision.grad_reduce_in_fp32=false"]
    )
    runtime_config_update(config, provenance=known)
    text = show(config, known, origin=True)
    assert re.search(r"\n  bf16: true +# command line\n", text)
    assert re.search(r"\n  fp32: false +# default\n", text)


class Colour(Enum):
    RED = 1


Share = NewType("Share", float)


@dataclass
class Layer:
    a: int = 1


class Named(TypedDict):
    name: str
    size: int


@dataclass
class Mappings:
    numbers: dict[str, int] = field(default_factory=lambda: {"old": 1})
    layers: dict[str, Layer] = field(default_factory=dict)
    by_number: dict[int, str] = field(default_factory=dict)
    by_colour: dict[Colour, int] = field(default_factory=dict)
    lists: dict[str, list[int]] = field(default_factory=dict)
    deep: dict[str, dict[str, int]] = field(default_factory=dict)
    named: Named = field(default_factory=lambda: {"name": "a", "size": 1})
    share: Share = Share(0.5)
    free: dict[str, Any] = field(default_factory=dict)


@dataclass
class WithMappings:
    s: Mappings = field(default_factory=Mappings)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("+s.numbers.k=abc", "int"),
        ("+s.numbers.k=1.5", "int"),
        ("s.numbers.old=abc", "int"),
        ("s.numbers={k: abc}", "int"),
        ("s.layers={k: {zz: 3}}", "no such field"),
        ("s.layers={k: 3}", "Layer"),
        ("+s.by_number.five=a", "int"),
        ("+s.by_colour.BLUE=1", "Colour"),
        ("+s.lists.k=[a]", "int"),
        ("+s.deep.a.b=c", "int"),
        ("s.named.size=big", "int"),
        ("s.share=much", "float"),
    ],
)
def test_values_and_keys_of_a_mapping_have_their_types(text, expected):
    with pytest.raises(ConfigReadError, match=expected):
        apply_overrides(WithMappings(), [text])


def test_a_mapping_of_a_file_has_its_types(tmp_path):
    (tmp_path / "c.yaml").write_text("s: {numbers: {on: abc}}\n")
    with pytest.raises(ConfigReadError) as caught:
        apply_yaml(WithMappings(), tmp_path / "c.yaml")
    assert "c.yaml:1: s.numbers.True: expected str, not True" in str(caught.value)


def test_mappings_receive_converted_values_and_keys():
    config = WithMappings()
    texts = [
        "s.layers={k: {a: 3}}",
        "+s.by_number.5=x",
        "+s.by_colour.RED=2",
        "+s.deep.a.b=1",
        "s.named.size=2",
    ]
    apply_overrides(config, [*texts, "+s.free.a={b: c}", "s.layers.k.a=4"])
    assert config.s == Mappings(
        layers={"k": Layer(4)},
        by_number={5: "x"},
        by_colour={Colour.RED: 2},
        deep={"a": {"b": 1}},
        named={"name": "a", "size": 2},
        free={"a": {"b": "c"}},
    )


@dataclass(frozen=True)
class Frozen:
    a: int = 1
    inner: Layer = field(default_factory=Layer)


@dataclass
class Computed:
    a: int = 1
    b: int = 2
    start: InitVar[int] = 7
    twice: int = field(init=False, default=0)

    def __post_init__(self, start):
        if self.a > self.b:
            raise ValueError(f"a={self.a} is more than b={self.b}")
        self.twice = start * 0 + 2 * self.a


@dataclass
class WithFrozen:
    f: Frozen = Frozen()
    s: Computed = field(default_factory=Computed)


def test_a_frozen_section_is_replaced_and_its_default_stays():
    config = WithFrozen()
    apply_overrides(config, ["f.a=5", "f.inner.a=6", "~f.a", "f.a=7"])
    assert config.f == Frozen(7, Layer(6))
    assert WithFrozen().f.a == 1


def test_a_field_of_a_frozen_default_is_deleted_in_a_copy():
    @dataclass
    class Run:
        f: Frozen = Frozen(a=3)

    config = Run()
    apply_overrides(config, ["~f.a"])
    assert (config.f.a, Run().f.a) == (1, 3)


def test_numbers_are_keys_of_a_mapping_without_types():
    @dataclass
    class Run:
        model: Any = None

    config = Run(model={"a": {1: 2, 3: {4: 5, "x": 6}}})
    apply_overrides(config, ["~model.a.1", "model.a.3.x=7", "~model.a.3.4"])
    assert config == Run(model={"a": {3: {"x": 7}}})


def test_a_frozen_configuration_cannot_be_changed_in_place():
    with pytest.raises(OverrideError, match="a: cannot be changed in place, because Frozen is frozen"):
        apply_overrides(Frozen(), ["a=2"])


def test_computed_fields_follow_and_checks_see_the_last_values():
    config = WithFrozen()
    apply_overrides(config, ["s.a=4", "s.b=9"])  # a=4 alone would be refused
    assert (config.s.a, config.s.twice) == (4, 8)
    with pytest.raises(ConfigReadError, match="s: a=10 is more than b=9"):
        apply_overrides(config, ["s.a=10"])


def test_computed_fields_follow_a_file(tmp_path):
    (tmp_path / "c.yaml").write_text("s: {a: 2}\nf: {a: 3}\n")
    config = WithFrozen()
    apply_yaml(config, tmp_path / "c.yaml")
    assert (config.s.twice, config.f.a) == (4, 3)


@pytest.mark.parametrize(
    "text", ["${oc.env:HOME}/x", "${oc.env:USER,me}", "${s.b}", "a/${HOME}", "${now:%Y}", "[a, '${HOME}']"]
)
def test_an_interpolation_is_not_taken_as_text(text):
    with pytest.raises(InterpolationError, match=r"s.free.k.*: contains \$\{.*, which is not resolved"):
        apply_overrides(WithMappings(), [f"+s.free.k={text}"])


@pytest.mark.parametrize("text", ["Q: ${input}", "costs 5$ {a}", "\\${HOME}"])
def test_other_dollars_are_text(text):
    config = WithMappings()
    apply_overrides(config, [f"+s.free.k='{text}'"])
    assert config.s.free == {"k": text}


@dataclass
class WithAliases:
    """Section with other names for a field and for an entry of a mapping."""

    length: int = 1
    further: dict[str, int] = field(default_factory=dict)
    field_aliases: ClassVar[dict[str, str]] = {"size": "length", "deep": "further.deep"}


@dataclass
class ContainerWithAliases:
    """Container of one such section."""

    s: WithAliases = field(default_factory=WithAliases)


def test_other_names_of_a_section_are_those_of_its_fields():
    config = ContainerWithAliases()
    provenance = apply_overrides(config, ["s.size=2", "s.deep=3"])
    assert (config.s.length, config.s.further) == (2, {"deep": 3})
    assert provenance.origin("s.length") == provenance.origin("s.further.deep") == "command line"
    with pytest.raises(WrongTypeError, match=r"s\.length: "):
        apply_overrides(config, ["s.size=x"])


def test_other_names_of_a_section_are_deleted_as_its_fields():
    config = ContainerWithAliases(s=WithAliases(length=5, further={"deep": 3, "kept": 4}))
    provenance = apply_overrides(config, ["~s.size", "~s.deep=3"])
    assert (config.s.length, config.s.further) == (1, {"kept": 4})
    assert provenance.origin("s.length") == provenance.origin("s.further.deep") == "command line"
    with pytest.raises(UnknownKeyError, match=r"s\.further\.deep: no such field"):
        apply_overrides(config, ["~s.deep"])
    with pytest.raises(OverrideError, match=r"s\.size: is already set"):
        apply_overrides(config, ["+s.size=2"])


def test_a_complete_section_of_a_file_has_the_names_of_fields():
    with pytest.raises(ConfigReadError) as raised:
        from_dict(ContainerWithAliases, {"s": {"size": 2, "deep": 3}})
    assert "s.size: is another name of s.length" in str(raised.value)
    assert "Write s.further.deep" in str(raised.value)
