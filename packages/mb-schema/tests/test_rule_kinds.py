"""Constructors of common rules: what they reject, what they accept, and their messages."""

import pytest

from mb_schema.rule_kinds import (
    SET,
    above,
    among,
    assigned,
    excludes,
    in_range,
    lettered,
    needs_package,
    no_effect,
    one_of,
    other_than,
    requires,
    section_rule,
    shown,
    unsupported,
    within,
)
from mb_schema.rules import RuleError, check, explain, refuse, rules_in

TEXT = {"why": "it is so", "fix": "Change it."}


def rejects(rule, *values):
    """Return the message for these values, after checking the examples of the rule."""
    assert rule.message(rule.fails)
    assert rule.message(rule.passes) is None
    return rule.test(*values)


def test_one_of():
    kind = one_of("X1", "a.kind", (None, "x", "y z"), fails="q", passes="x", **TEXT)
    assert rejects(kind, "q") == "must be one of x, 'y z' (kind=q)"
    assert rejects(kind, None) is None


@pytest.mark.parametrize(
    ("bounds", "value", "message"),
    [
        ({"low": 1}, 0, "must be at least 1 (n=0)"),
        ({"low": 1}, float("nan"), "must be at least 1 (n=nan)"),
        ({"low": 1}, float("inf"), None),
        ({"low": 0, "high": 3}, 4, "must be from 0 to 3 (n=4)"),
        ({"high": 3}, 4, "must be at most 3 (n=4)"),
        ({"above": 0}, 0, "must be above 0 (n=0)"),
        ({"above": 0}, float("nan"), "must be above 0 (n=nan)"),
        ({"above": 0, "high": 1}, 2, "must be above 0 and at most 1 (n=2)"),
        ({"below": 0}, 0, "must be less than 0 (n=0)"),
        ({"below": 0}, -1, None),
        ({"low": 0, "below": 1}, 1, "must be at least 0 and less than 1 (n=1)"),
        ({"low": 0}, None, None),
    ],
)
def test_in_range(bounds, value, message):
    assert rejects(in_range("X1", "a.n", **bounds, **TEXT), value) == message


def test_the_default_fix_names_the_bounds():
    assert in_range("X1", "a.n", 1, why="").fix == "Set a.n to 1 or more."
    assert in_range("X1", "a.n", 1, 8, why="").fix == "Set a.n to 1 to 8."
    assert in_range("X1", "a.n", above=0, high=1, why="").fix == "Set a.n to a number above 0 and at most 1."


def test_lettered():
    assert [*lettered("X1", ("a.n", "a.m"))] == [("X1a", "a.n"), ("X1b", "a.m")]
    with pytest.raises(IndexError):  # none is left out
        [*lettered("X1", [f"a.{number}" for number in range(27)])]


def test_excludes():
    conditions = {"a.on": True, "a.kind": "x", "b.n": above(1)}
    combined = excludes("X1", conditions, fails={"b.n": 2}, **TEXT)
    assert combined.fails == {"a.on": True, "a.kind": "x", "b.n": 2}
    assert combined.passes == {"a.on": False, "a.kind": "x", "b.n": 2}
    assert rejects(combined, 3, "x", 5) == "cannot be combined with kind and b.n (on=3, kind=x, b.n=5)"
    assert rejects(combined, None, "x", 5) is None
    assert rejects(combined, True, "x", None) is None


@pytest.mark.parametrize(
    ("needs", "good", "bad", "message"),
    [
        (True, 1, 0, "requires other (on=true, other=0)"),
        (False, None, "q", "requires other=false (on=true, other=q)"),
        (SET, 0, None, "requires other (on=true, other=null)"),
        ("x", "x", None, "requires other=x (on=true, other=null)"),
        (among("x", None), None, "y", "requires other=x or null (on=true, other=y)"),
        (other_than(""), None, "", "requires other other than '' (on=true, other='')"),
    ],
)
def test_requires(needs, good, bad, message):
    needed = requires(
        "X1", {"a.on": True}, {"a.other": needs}, fails={"a.other": bad}, passes={"a.other": good}, **TEXT
    )
    assert rejects(needed, True, bad) == message
    assert rejects(needed, False, bad) is None


def test_no_effect():
    unused = no_effect("X1", "a.on", {"a.n": 1, "a.m": None}, fails={"a.n": 2}, severity="warning", **TEXT)
    assert (unused.severity, unused.fails) == ("warning", {"a.on": False, "a.n": 2, "a.m": None})
    assert rejects(unused, None, 2, 3) == "leaves other settings without effect (on=null, n=2, m=3)"
    assert rejects(unused, False, 1, None) is None
    named = no_effect("X1", "a.name", {"a.n": 1}, fails={"a.n": 2}, passes={"a.name": "x"}, **TEXT)
    assert (named.fails["a.name"], named.passes["a.name"]) == (None, "x")


def test_needs_package():
    package = needs_package("X1", ["a.on", "a.name"], "some-tool", fact="tool_installed", **TEXT)
    assert package.fails == {"a.on": True, "a.name": None, "facts.tool_installed": False}
    assert rejects(package, None, "x", False) == "requires some-tool, which is not installed (name=x)"
    assert rejects(package, None, None, False) is None


def test_unsupported():
    option = unsupported("X1", "a.option", False, fails=True)
    assert (option.fix, option.fails) == ("Leave it at false.", {"a.option": True})
    assert rejects(option, "x") == "is not supported (option=x)"
    assert rejects(option, None) is None


def test_severity_and_fallback_of_kinds():
    given = {"severity": "warning", "fallback": {"a.on": False}, **TEXT}
    combined = excludes("X1", {"a.on": True, "b.on": True}, **given)
    needed = requires("X1", {"a.on": True}, {"b.on": True}, **given)
    assert [(kind.severity, kind.fallback) for kind in (combined, needed)] == [
        ("warning", {"a.on": False})
    ] * 2


def test_paths_and_values():
    assert assigned({"fp8": "hybrid", "on": None}) == "fp8=hybrid, on=null"
    assert within("a", "n m") == ("a.n", "a.m")
    assert [shown(value) for value in (None, True, "x", "x y", 1.5)] == ["null", "true", "x", "'x y'", "1.5"]


RULES = (
    in_range("X1", "a.n", 1, **TEXT),
    section_rule("a", "X2", fails={"n": 4}, passes={"n": 5}, severity="warning", **TEXT)(
        lambda n: "is below 5" if n < 5 else None
    ),
    requires("X3", {"a.on": True}, {"b.n": SET}, passes={"b.n": 1}, **TEXT),
    in_range("X4", "facts.gpus", 1, **TEXT),
)


def test_a_field_that_is_absent_is_none_and_an_absent_section_or_fact_skips_the_rule():
    assert [problem.id for problem in check({"a": {"n": 0, "on": True}}, RULES)] == ["X1", "X2"]
    assert [problem.id for problem in check({"a": {"on": True}, "b": {}}, RULES)] == ["X3"]
    assert [problem.id for problem in check({"a": {"n": 9}, "b": None}, RULES, facts={"gpus": 0})] == ["X4"]


def test_rules_in_a_module_are_in_the_order_of_definition():
    assert rules_in({"second": RULES[1], "name": "X9", "first": RULES[0]}) == (RULES[1], RULES[0])


def test_refuse_raises_every_error_at_once_and_no_warning():
    with pytest.raises(RuleError) as refused:
        refuse({"a": {"n": 0, "on": True}, "b": {}}, RULES)
    assert [problem.id for problem in refused.value.problems] == ["X1", "X3"]
    assert str(refused.value).splitlines() == [
        "[X1] a.n: must be at least 1 (n=0), because it is so. Change it.",
        "[X3] a.on: requires b.n (on=true, b.n=null), because it is so. Change it.",
    ]
    refuse({"a": {"n": 3}}, RULES)


def test_a_message_masks_secrets_and_limits_its_length():
    key = section_rule("a", "X1", fails={}, passes={}, **TEXT)(lambda api_key: f"is {api_key}")
    long = section_rule("a", "X2", fails={}, passes={}, **TEXT)(lambda name: f"is {name}")
    found = check({"a": {"api_key": "s3cret", "name": "n" * 5_000}}, [key, long])
    assert found[0].message == "is <masked>"
    assert len(found[1].message) < 300


def test_explain_quotes_text():
    text = explain(one_of("X1", "a.kind", ("x", "y"), fails="q", **TEXT))
    assert text.splitlines()[4:8] == [
        "fails:",
        "  a:",
        '    kind: "q"',
        "message: a.kind: must be one of x, y (kind=q)",
    ]


def test_a_rule_that_another_one_implies_is_left_out():
    def never(id, **options):
        return section_rule("a", id, fails={}, passes={}, **options, **TEXT)(lambda n: "is wrong")

    def found(*rules):
        return [problem.id for problem in check({"a": {"n": 1}}, rules)]

    implied = never("X3", implied_by="X1 X2")
    assert found(implied, never("X2")) == ["X2"]
    assert found(never("X4"), implied) == ["X4", "X3"]
    assert found(never("X1", severity="warning"), implied) == ["X1", "X3"]  # a warning implies no error
    warned = never("X3", implied_by="X1", severity="warning")
    assert found(never("X1", severity="warning"), warned) == ["X1"]
    needed = requires("X4", {"a.n": 1}, {"a.m": SET}, implied_by="X1", **TEXT)
    assert found(never("X1"), needed) == ["X1"]


def test_the_parameters_of_a_condition_are_its_fields_and_receive_their_values_by_name():
    @section_rule("train", "X1", **TEXT, fails={"tp": 2, "gpu": "b200"}, passes={"gpu": None})
    def condition(micro_batch_size, tp, dataset__seq_length, *, gpu):
        return f"{micro_batch_size} {tp} {dataset__seq_length} {gpu}" if gpu else None

    assert condition.fields == (
        "train.micro_batch_size",
        "model.tensor_model_parallel_size",
        "dataset.seq_length",
        "facts.gpu",
    )
    assert condition.fails == {"model.tensor_model_parallel_size": 2, "facts.gpu": "b200"}
    assert condition.passes == {"model.tensor_model_parallel_size": 2, "facts.gpu": None}
    sections = {"train": {"micro_batch_size": 1}, "model": {"tensor_model_parallel_size": 2}, "dataset": {}}
    (problem,) = check(sections, [condition], facts={"gpu": "h100"})
    assert problem.message == "1 2 None h100"
    assert condition.check({"facts.gpu": None}) is None


def test_a_condition_of_several_rules_has_their_paths_and_receives_further_values_together():
    options = {**TEXT, "fails": {"on": True}, "passes": {"on": False}, "fallback": {"on": False}}
    made = section_rule(
        "model", "X1", paths={"on": "ddp.fused"}, others=("a", "dist__b", "facts.c"), **options
    )(lambda on, **values: f"{on} {values}" if on else None)
    assert made.fields == ("ddp.fused", "model.a", "dist.b", "facts.c")
    assert made.fallback == {"ddp.fused": False}
    assert (
        made.message({"ddp.fused": True, "model.a": 3}) == "True {'a': 3, 'dist__b': None, 'facts.c': None}"
    )


def test_without_a_section_parameters_are_fields_of_the_configuration():
    made = section_rule("", "X1", fails={"perf": "x"}, passes={"perf": None}, **TEXT)(
        lambda perf, train__steps: perf
    )
    assert made.fields == ("perf", "train.steps")
    assert [problem.id for problem in check({"perf": "h10", "train": {}}, [made])] == ["X1"]


@pytest.mark.parametrize("given", ["paths", "fails", "passes", "fallback"])
def test_an_example_or_path_of_an_unknown_parameter_is_an_error(given):
    options = {"fails": {}, "passes": {}, given: {"sise": "train.x"}}
    with pytest.raises(ValueError, match=r"rule X1: sise is no parameter of <lambda> \(size\)"):
        section_rule("train", "X1", **TEXT, **options)(lambda size: None)


def test_a_condition_of_any_value_has_an_example():
    warmup = requires("X1", {"a.warmup": SET}, {"a.decay": SET}, **TEXT)
    assert (warmup.fails, warmup.passes) == ({"a.warmup": 1, "a.decay": None}, {"a.warmup": 1, "a.decay": 1})
    assert warmup.message(warmup.fails) == "requires decay (warmup=1, decay=null)"
    assert warmup.message(warmup.passes) is None
