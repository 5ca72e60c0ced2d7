"""Problems: reported together, with values, origins, reasons and fixes."""

import json
from dataclasses import fields

import pytest

from mb_config import (
    RULES,
    ConfigContainer,
    ConfigError,
    Problem,
    Provenance,
    Rule,
    TrainingConfig,
    check,
    explain,
)
from mb_config.preflight.facts import collect_facts
from mb_config.preflight.problems import explain_equivalent
from mb_schema.rule_kinds import in_range


def rule(test, *fields, id="X1", why="pairs are made", fix="Set a.size to an even number."):
    return Rule(id=id, fields=fields, test=test, why=why, fix=fix, fails={}, passes={})


EVEN = rule(lambda size: f"{size} is odd" if size is not None and size % 2 else None, "a.size")
PROBLEM = Problem(
    id="X1",
    fields=("a.size",),
    message="3 is odd",
    why="pairs are made",
    fix="Set a.size to an even number.",
    values={"a.size": 3},
    origin={"a.size": "run.yaml:2"},
)


def test_problem_holds_values_and_where_they_came_from():
    found = check({"a": {"size": 3}}, [EVEN], provenance=Provenance({"a.size": "run.yaml:2"}))
    assert found == [PROBLEM]


def test_problem_as_text():
    assert str(PROBLEM) == "a.size: 3 is odd, because pairs are made. Set a.size to an even number."


def test_problem_as_json():
    assert json.loads(json.dumps(PROBLEM.to_dict())) == {
        "id": "X1",
        "severity": "error",
        "fields": ["a.size"],
        "message": "3 is odd",
        "why": "pairs are made",
        "fix": "Set a.size to an even number.",
        "values": {"a.size": 3},
        "origin": {"a.size": "run.yaml:2"},
    }


def test_other_values_as_json():
    problem = Problem(
        id="X", fields=("a",), message="", why="", fix="", values={"a": (1, {"b": {2}}), "c": len}
    )
    assert problem.to_dict()["values"] == {"a": [1, {"b": [2]}], "c": str(len)}


RATIO = rule(
    lambda size, parts: f"{size} is below {parts}" if size < (parts or 1) else None,
    "a.size",
    "a.parts",
    id="X2",
)


@pytest.mark.parametrize("sections", [{}, {"a": None}, {"a": {}}, {"a": object()}, {"b": {"size": 0}}])
def test_a_rule_is_skipped_if_its_section_or_first_field_is_absent(sections):
    assert check(sections, [EVEN, RATIO]) == []


def test_another_absent_field_reads_as_none():
    assert [problem.message for problem in check({"a": {"size": 0}}, [RATIO])] == ["0 is below None"]


def test_a_rule_that_reads_an_unknown_fact_is_skipped(make):
    config = make()
    config.train.global_batch_size = 12
    assert config.check() == []
    assert [problem.id for problem in config.check(world_size=4)] == ["V242"]


def test_validate_raises_every_problem_at_once(make):
    config = make()
    config.rng.seed, config.optimizer.lr, config.scheduler.lr_warmup_iters = 0, None, 1000
    with pytest.raises(ConfigError) as caught:
        config.validate(world_size=1)
    assert [problem.id for problem in caught.value.problems] == ["V205", "V208", "V240"]
    assert [line[:6] for line in str(caught.value).splitlines()] == ["[V205]", "[V208]", "[V240]"]


def test_validate_returns_warnings(make):
    config = make()
    config.scheduler.lr_warmup_iters = 1000
    assert [problem.id for problem in config.validate()] == ["V205"]


def test_a_container_checks_the_rules_that_are_installed_in_it(make):
    class Config(ConfigContainer):
        def installed_rules(self):
            return [in_range("X1", "train.train_iters", 100, why="it is short", fix="Train longer.")]

    base = make(train=TrainingConfig(train_iters=10, global_batch_size=8, micro_batch_size=2))
    config = Config(**{item.name: getattr(base, item.name) for item in fields(base) if item.init})
    assert [problem.id for problem in config.check()] == ["X1"]
    assert "X1" not in {problem.id for problem in config.check(RULES)}
    with pytest.raises(ConfigError, match="X1"):
        config.validate()


def test_every_rule_can_be_checked_without_sections():
    assert check({}, RULES) == []


def test_a_rule_can_read_a_complete_section():
    present = rule(lambda section: "profiling is set", "profiling")
    assert [problem.id for problem in check({"profiling": {"start": 1}}, [present])] == ["X1"]
    assert check({}, [present]) == []


def test_facts_come_from_the_arguments_of_check(make):
    config = make(mixed_precision="bf16_with_nvfp4_mixed", env_vars={"CUDA_DEVICE_MAX_CONNECTIONS": 1})
    config.ddp.use_megatron_fsdp = True
    assert [p.id for p in config.check()] == ["V176"]
    assert [p.id for p in config.check(env={"CUDA_DEVICE_MAX_CONNECTIONS": "8"})] == []
    found = config.check(world_size=3, gpu="h100", versions={"transformer_engine": "2.6", "torch": "2.11.0"})
    assert [p.id for p in found] == ["H02", "V242", "V016", "V176"]


def test_a_package_that_is_not_installed_is_known_to_be_missing():
    assert collect_facts(
        versions={"transformer_engine": None}, env={"A": "1"}, env_vars={"A": 2, "B": 3}
    ) == {
        "env": {"A": "1", "B": "3"},
        "transformer_engine": False,
    }


def test_a_rule_that_prints_a_secret_prints_it_masked():
    both = rule(
        lambda key, name: f"{key!r} is set together with name={name}, that is comet_api_key={key}",
        "logger.comet_api_key",
        "logger.name",
    )
    found = check({"logger": {"comet_api_key": "s3cret-value", "name": "run"}}, [both])
    assert [problem.message for problem in found] == [
        "'<masked>' is set together with name=run, that is comet_api_key=<masked>"
    ]
    assert "s3cret-value" not in json.dumps(found[0].to_dict())


def test_python_literals_in_messages_are_written_as_in_a_file():
    literal = rule(lambda size: "bf16=False, pp=None, not True", "a.size")
    assert check({"a": {"size": 3}}, [literal])[0].message == "bf16=false, pp=null, not True"


def test_a_notebook_shows_problems_as_a_table():
    marked = rule(lambda value: f"is {value}", "a.b", why="it is <b>", fix="Change it.")
    html = check({"a": {"b": "<script>"}}, [marked])._repr_html_()
    assert "<code>a.b</code>: is &lt;script&gt;<br><small>because it is &lt;b&gt;. Change it.</small>" in html
    assert check({}, [marked])._repr_html_() == "<p>No problems.</p>"


def test_a_constraint_of_another_program_is_explained_by_its_rules():
    (first, second) = RULES[:2]
    text = explain_equivalent(("It is a rule here.", [second.id]), RULES)
    assert text == f"It is a rule here.\n\n{explain(second)}"
    assert first.id != second.id
    assert explain_equivalent(None, RULES) is None
