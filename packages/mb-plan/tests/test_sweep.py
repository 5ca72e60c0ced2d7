"""Sweeps over combinations of values."""

import itertools
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mb_plan import Axis, run_sweep
from mb_plan.sweep.grid import RejectedGroup, at_point
from mb_plan.sweep.points import values_as_written
from mb_schema.rules import Rule, check
from mb_schema.secrets import MASK

TP, PP = "model.tensor_model_parallel_size", "model.pipeline_model_parallel_size"
MODEL = {
    "num_layers": 8,
    "num_attention_heads": 8,
    "tensor_model_parallel_size": 1,
    "pipeline_model_parallel_size": 1,
}
WORLD8 = {"world_size": 8}


def rule(name, *fields, test, severity="error"):
    return Rule(
        id=name, fields=fields, test=test, why="-", fix="-", severity=severity, fails={}, passes={}
    )  # fmt: skip


def test_a_long_sweep_reports_its_progress(capsys):
    """Ten points of two seconds each: 6, 12 and 18 seconds have passed."""
    pytest.importorskip("rich")  # of the extra cli
    from mb_plan.cli.sweep_report import with_progress

    clock = itertools.chain([0.0], itertools.count(0.0, 2.0))
    assert [*with_progress([(index,) for index in range(10)], 10, clock=lambda: next(clock))] == [
        (index,) for index in range(10)
    ]
    assert capsys.readouterr().err.splitlines() == [
        "3 of 10 points are planned, 14.00 s left",
        "6 of 10 points are planned, 8.00 s left",
        "9 of 10 points are planned, 2.00 s left",
    ]


def test_passing_points_and_reasons_for_the_rejected_ones():
    def product(world, tp, pp):
        return None if world % (tp * pp) == 0 else f"{world} processes are not a multiple of {tp * pp}"

    def split(heads, tp):
        return None if heads % tp == 0 else f"{heads} heads cannot be split into tp={tp} parts"

    rules = [
        rule("World", "facts.world_size", TP, PP, test=product),
        rule("Heads", "model.num_attention_heads", TP, test=split),
    ]
    axes = [Axis(path=TP, values=(1, 2, 3)), Axis(path=PP, values=(1, 16))]
    sweep = run_sweep({"model": MODEL}, axes, rules, facts=WORLD8)
    assert (sweep.total, [sweep.values(index) for index in sweep.passing]) == (
        6,
        [{TP: 1, PP: 1}, {TP: 2, PP: 1}],
    )
    assert sweep.rejected == (
        RejectedGroup(rules=("World",), count=2, first=(0, 1)),
        RejectedGroup(rules=("World", "Heads"), count=2, first=(2, 0)),
    )
    assert sweep.problems["Heads"].message == "8 heads cannot be split into tp=3 parts"


def test_values_have_no_secret():
    written = [Axis(path="checkpoint.storage_options", values=({"secret": "S3CRET"},))]
    result = run_sweep({"checkpoint": {}}, written, [])
    assert values_as_written(result, written, (0,)) == {"checkpoint.storage_options": {"secret": MASK}}


def test_rules_that_read_no_axis_are_evaluated_once_and_the_others_once_for_each_value_they_read():
    calls = []
    rules = [
        rule("A", "a.still", test=lambda value: calls.append(("A", value))),
        rule("B", "a.x", "a.still", test=lambda *values: calls.append(("B", *values))),
        rule("C", "a.y", "a.x", test=lambda *values: calls.append(("C", *values))),
    ]
    axes = [Axis(path=f"a.{name}", values=(1, 2)) for name in "xyz"]
    sweep = run_sweep({"a": {"still": 0, "x": 0, "y": 0, "z": 0}}, axes, rules)
    assert len(sweep.passing) == sweep.total == 8
    assert calls == [
        ("A", 0), ("B", 1, 0), ("C", 1, 1), ("C", 2, 1), ("B", 2, 0), ("C", 1, 2), ("C", 2, 2)
    ]  # fmt: skip


def test_a_rule_that_reads_no_axis_rejects_every_point():
    broken = rule("A", "a.still", test=lambda value: "no")
    warned = rule("W", "a.x", test=lambda value: "hm", severity="warning")
    sweep = run_sweep({"a": {"still": 0, "x": 0}}, [Axis(path="a.x", values=(1, 2))], [broken, warned])
    assert sweep.rejected == (RejectedGroup(rules=("A",), count=2, first=(0,)),)


def test_rules_with_equal_ids_are_merged():
    twins = [rule("A", "a.x", test=lambda x, at=at: "no" if x >= at else None) for at in (1, 2)]
    sweep = run_sweep({"a": {"x": 0}}, [Axis(path="a.x", values=(0, 1, 2))], twins)
    assert sweep.rejected == (RejectedGroup(rules=("A",), count=2, first=(1,)),)


@dataclass(kw_only=True)
class Part:
    x: int = 0
    more: object = None


def test_at_a_point_only_changed_sections_are_copied():
    sections = {"a": Part(more={"deep": 1, "other": 2}), "b": Part()}
    axes = [Axis(path="a.more.deep", values=(5,)), Axis(path="c", values=("whole",))]
    there = at_point(sections, axes, (0, 0))
    assert there == {"a": Part(more={"deep": 5, "other": 2}), "b": Part(), "c": "whole"}
    assert (sections["a"].more["deep"], there["b"] is sections["b"]) == (1, True)


RULES_OF_ALL_KINDS = [
    rule("one", "a.x", test=lambda x: "no" if x == 1 else None),
    rule("two", "a.x", "b.y", test=lambda x, y: "no" if x == y else None),
    rule("whole", "a", test=lambda a: "no" if a.x == 2 and a.more else None),
    rule("inside", "a.more", "b.y", test=lambda more, y: "no" if more and more["deep"] == y else None),
    rule("fact", "facts.world_size", "a.x", test=lambda world, x: "no" if world == x else None),
    rule("off", "c.z", test=lambda z: "no" if z else None),
    rule("still", "b.x", test=lambda x: "no" if x else None),
]


@settings(max_examples=40, deadline=None)
@given(
    chosen=st.lists(
        st.sampled_from(
            [
                Axis(path="a.x", values=(0, 1, 2)),
                Axis(path="a.more.deep", values=(1, 2)),
                Axis(path="b.y", values=(2, 1)),
                Axis(path="facts.world_size", values=(1, 2, None)),
                Axis(path="c", values=(None, SimpleNamespace(z=1), SimpleNamespace(z=0), SimpleNamespace())),
            ]
        ),
        unique_by=lambda axis: axis.path,
    ),
    still=st.integers(0, 1),
)
def test_a_sweep_equals_checking_each_point(chosen, still):
    sections = {
        "a": Part(x=0, more={"deep": 0}),
        "b": SimpleNamespace(x=still, y=3),
        "c": SimpleNamespace(z=0),
    }
    sweep = run_sweep(sections, chosen, RULES_OF_ALL_KINDS, facts={"world_size": 4})
    found = dict.fromkeys(sweep.passing, ())
    for index in itertools.product(*(range(len(axis.values)) for axis in chosen)):
        known = at_point({**sections, "facts": {"world_size": 4}}, chosen, index)
        facts = known.pop("facts")
        present = {name: section for name, section in known.items() if section is not None}
        found_here = tuple(problem.id for problem in check(present, RULES_OF_ALL_KINDS, facts=facts))
        assert (index in found) == (found_here == ())
        found.setdefault(index, found_here)
    groups = {group.rules: group.count for group in sweep.rejected}
    assert groups == {ids: list(found.values()).count(ids) for ids in set(found.values()) if ids}


@pytest.mark.parametrize(
    ("paths", "message"),
    [(("a.x", "a.x"), "is on two axes"), (("a", "a.x"), "is on two axes")],
)
def test_two_axes_for_one_field_are_an_error(paths, message):
    with pytest.raises(ValueError, match=message):
        run_sweep({"a": {"x": 1}}, [Axis(path=path, values=(1,)) for path in paths], [])


def test_an_axis_without_values_is_an_error():
    with pytest.raises(ValueError, match=r"a\.x: has no values"):
        run_sweep({"a": {"x": 1}}, [Axis(path="a.x", values=())], [])
