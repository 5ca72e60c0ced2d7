"""Parsing of values to sweep over."""

from dataclasses import dataclass, field

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from mb_config import (
    ConfigReadError,
    DistributedDataParallelConfig,
    OverrideError,
    Variation,
    get_mixed_precision_config,
    read_variations,
    split_yaml,
    to_axes,
)
from mb_schema.hydra_text import hydra_quoted, to_hydra_text


@dataclass(kw_only=True)
class Model:
    tp: int = 1
    kind: str | list[str] | None = None
    sizes: list[int] | None = None
    open: object = None
    extra: dict[str, object] = field(default_factory=dict)


@dataclass(kw_only=True)
class Other:
    depth: float = 1.0


@dataclass(kw_only=True)
class Run:
    model: Model | Other = field(default_factory=Model)
    ddp: DistributedDataParallelConfig | None = None
    mixed_precision: object | str | None = None


def several(word, config=None):
    single, found = read_variations([word], config or Run())
    return found[0].values if found else single


def test_commas_choices_and_ranges_are_several_values():
    assert several("model.tp=1,2,4") == (1, 2, 4)
    assert several("model.tp=choice(1,2)") == (1, 2)
    assert several("model.tp=range(1,4)") == (1, 2, 3)
    assert several("model.kind=null,p2p") == (None, "p2p")


def test_a_list_is_several_values_if_the_field_takes_no_list():
    assert several("model.tp=[1,2,4]") == (1, 2, 4)
    assert several("ddp.bucket_size=[1,null]") == (1, None)


def test_a_list_is_one_value_if_the_field_takes_lists():
    for word in (
        "model.sizes=[1,2]",
        "model.kind=[a,b]",
        "model.open=[1]",
        "model.extra.x=[1]",
        "no.such=[1]",
    ):
        assert several(word) == [word]
    assert several("model.sizes=[1,2],[3]") == ([1, 2], [3])


def test_a_deletion_has_no_values_to_sweep_over():
    for word in ("~model.tp=1,2", "~model.tp=[1,2]"):
        assert several(word) == [word]


def test_overrides_keep_their_order_and_prefixes():
    words = ["model.tp=2", "+model.extra.x=1,2", "not an override", "~model.kind"]
    assert read_variations(words, Run()) == (
        ["model.tp=2", "not an override", "~model.kind"],
        [Variation(path="model.extra.x", values=(1, 2), prefix="+")],
    )


def test_values_that_are_not_finite_are_rejected():
    with pytest.raises(OverrideError, match="has no finite list of values"):
        read_variations(["model.tp=interval(0,1)"], Run())


@pytest.mark.parametrize(
    ("values", "message"),
    [("range(5,1)", "has no values"), ("[]", "has no values"), ("range(1,5,0)", "has no list of values")],
)
def test_variations_without_values_are_rejected(values, message):
    with pytest.raises(OverrideError, match=message):
        read_variations([f"model.tp={values}"], Run())


def test_lists_in_a_file():
    data = {"model": {"tp": [1, 2], "sizes": [1], "unknown": [1]}, "ddp": {"bucket_size": []}, "more": [1]}
    reduced, found = split_yaml(data, Run)
    assert reduced == {**data, "model": {"tp": 1, "sizes": [1], "unknown": [1]}}
    assert found == [Variation(path="model.tp", values=(1, 2))]


def test_lists_in_a_file_that_names_its_class():
    _, found = split_yaml(
        {"model": {"_target_": "x.Other", "depth": [1, 2]}}, Run, targets={"x.Other": Other}
    )
    assert found == [Variation(path="model.depth", values=(1, 2))]


def test_values_are_converted_to_the_type_of_the_field():
    variations = [
        Variation(path="model.tp", values=(1, 2)),
        Variation(path="model.extra.x", values=("it's", [1.5, None]), prefix="+"),
        Variation(path="ddp.grad_reduce_in_fp32", values=(True,)),
    ]
    assert to_axes(Run(), variations) == (
        Variation(path="model.tp", values=(1, 2)),
        Variation(path="model.extra.x", values=("it's", [1.5, None])),
        Variation(path="ddp.grad_reduce_in_fp32", values=(True,)),
    )


def test_a_section_by_name_becomes_the_section():
    (axis,) = to_axes(Run(), [Variation(path="mixed_precision", values=("bf16_mixed",))])
    assert axis.values in ((get_mixed_precision_config("bf16_mixed"),), ("bf16_mixed",))


def test_every_value_that_does_not_fit_is_reported():
    with pytest.raises(ConfigReadError) as rejected:
        to_axes(Run(), [Variation(path="model.tp", values=(1, "two", 3.5))])
    assert all(text in str(rejected.value) for text in ("two", "3.5"))


@pytest.mark.parametrize(
    "value",
    [None, True, 1, -2.5e-7, "it's", r"\\server\x", r"a\'b", "end\\", "a\\\n", '"', "null", "1", "1e5", "True", "NaN",
     "", "a b,c=d", "/data/x.y", "C:x", "bf16_mixed", "a-b", ["a", [1, None], "x,y"], {"a": "it's", "b": [True]}],
)  # fmt: skip
def test_hydra_reads_back_what_is_written(value):
    parser = OverridesParser.create()
    assert parser.parse_override(f"a={to_hydra_text(value)}").value() == value
    if isinstance(value, str):
        assert parser.parse_override("a=" + hydra_quoted(value, quote='"')).value() == value
