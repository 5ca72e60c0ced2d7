"""Preflight: what it finds as written, while resolving and as resolved."""

import pytest

from mb_config import RULES, ConfigError, Problem, Provenance, Rule
from mb_config.preflight.run import DataCheck, PreflightChecks, effective_dist, preflight, violations
from mb_config.resolve.fallbacks import NO_TRANSFORMER_ENGINE, select_local_layers
from mb_schema.rules import RuleError


def ids(result):
    return [problem.id for problem in result.problems]


def never(number, *fields, severity="error"):
    """Return a rule that rejects every value."""
    return Rule(
        id=number,
        fields=fields,
        test=lambda *_: "is wrong",
        why="w",
        fix="F.",
        severity=severity,
        fails={},
        passes={},
    )


def test_a_valid_configuration_is_resolved_in_place(make):
    config = make()
    result = preflight(config, facts={"world_size": 2})
    assert (ids(result), result.resolved, config.data_parallel_size) == ([], True, 2)
    assert "data_parallel_size" in [change.field for change in result.changes]
    result.raise_errors()


def test_without_the_number_of_processes_nothing_is_changed(make):
    config = make()
    result = preflight(config, facts={})
    assert (result.unresolved, config.data_parallel_size) == ("the number of processes is not known", None)
    with pytest.raises(ConfigError):
        result.raise_errors()


def test_a_section_that_was_not_read_is_not_checked(make):
    config = make()
    config.train.global_batch_size = 7
    result = preflight(config, facts={"world_size": 2}, sections=["optimizer"])
    assert (ids(result), result.unresolved) == ([], "the file has no sections train, model, scheduler")


def test_what_only_the_resolved_configuration_violates_is_found(make):
    config = make()
    config.validation.eval_micro_batch_size = 3
    assert ids(preflight(config, facts={"world_size": 2})) == ["V119"]


def test_settings_that_exclude_each_other(make):
    config = make()
    config.mixed_precision, config.optimizer.bf16 = "bf16_mixed", False
    result = preflight(config, facts={"world_size": 2})
    assert (ids(result), result.unresolved) == (["V017"], "V017 rejects the settings")


def test_an_unknown_precision_recipe_is_one_problem(make):
    config = make()
    config.mixed_precision = "bf17"
    result = preflight(config, facts={"world_size": 2})
    assert (ids(result), result.resolved) == (["V011"], False)


@pytest.mark.parametrize(
    ("facts", "found"), [({"same_machine": True}, ["N"]), ({}, [])], ids=["this machine", "another one"]
)
def test_rules_on_data_are_applied_on_this_machine(make, facts, found):
    data = DataCheck(
        read=lambda config: {"entries": 8}, facts=frozenset({"entries"}), sections=frozenset({"dataset"})
    )
    checks = PreflightChecks(rules=(never("N", "model.num_layers", "facts.entries"),), data=[data])
    assert ids(preflight(make(), checks, facts={"world_size": 2, **facts})) == found


def test_the_size_of_the_data_sets_the_length_in_epochs_and_its_warnings(make):
    data = DataCheck(
        read=lambda config: {"training_samples": 20}, facts=frozenset(), sections=frozenset({"dataset"})
    )
    config = make()
    config.train.train_iters, config.train.num_epochs = None, 2
    config.scheduler.lr_warmup_iters = 50
    result = preflight(config, PreflightChecks(data=[data]), facts={"world_size": 1, "same_machine": True})
    assert config.train.train_iters == -(-40 // config.train.global_batch_size)
    assert [(each.id, each.severity) for each in result.problems] == [("V205", "warning")]


def test_data_is_not_read_after_an_error_in_its_sections(make):
    data = DataCheck(read=lambda config: 1 / 0, facts=frozenset({"entries"}), sections=frozenset({"dataset"}))
    checks = PreflightChecks(rules=(never("N", "dataset"),), data=[data])
    assert ids(preflight(make(), checks, facts={"world_size": 2, "same_machine": True})) == ["N"]


def test_violated_rules_of_an_overlap_section_are_problems_with_their_origin(make):
    conflict = Problem(id="O02", fields=("comm_overlap.x", "facts.gpu"), message="m", why="w", fix="F.")

    class Overlap:
        def setup(self, model, optimizer, ddp):
            raise RuleError([conflict])

    config = make()
    config.comm_overlap = Overlap()
    result = preflight(
        config, facts={"world_size": 2}, provenance=Provenance({"comm_overlap.x": "run.yaml:3"})
    )
    assert [(problem.id, problem.origin) for problem in result.errors] == [
        ("O02", {"comm_overlap.x": "run.yaml:3"})
    ]


def test_an_error_without_rules_is_raised():
    with pytest.raises(ValueError, match="another error"):
        violations(ValueError("another error"), Provenance())
    problem = Problem(id="X", fields=("a.b",), message="m", why="w", fix="F.")
    assert violations(ConfigError([problem]), Provenance()) == [problem]


def test_without_a_gpu_the_backend_is_gloo(make):
    dist = make().dist
    assert effective_dist(dist, {"cpu": True}).distributed_backend == "gloo"
    assert effective_dist(dist, {}) is dist
    assert dist.distributed_backend == "nccl"


def test_local_layers_are_selected_without_a_gpu(make):
    config, provenance = make(), Provenance()
    config.model = {"transformer_impl": "transformer_engine"}
    assert not select_local_layers(
        config, facts={"cpu": False, "transformer_engine": False}, provenance=provenance
    )
    assert select_local_layers(
        config, facts={"cpu": True, "transformer_engine": False}, provenance=provenance
    )
    assert config.model == {"transformer_impl": "local"}
    assert provenance.origin("model.transformer_impl") == NO_TRANSFORMER_ENGINE
    assert not select_local_layers(
        config, facts={"cpu": True, "transformer_engine": False}, provenance=provenance
    )


@pytest.mark.parametrize("value", [True, 3, "yes"])
def test_a_value_in_place_of_a_section_of_restarts_is_a_problem(make, value):
    config = make(inprocess_restart=value)
    result = preflight(config, PreflightChecks(rules=()), facts={"world_size": 8})
    assert [problem.id for problem in result.problems] == ["TY01"]


def test_an_infinite_warm_up_is_a_problem_of_its_own(make):
    config = make()
    config.scheduler.lr_warmup_fraction = float("inf")
    assert preflight(config, PreflightChecks(rules=RULES), facts={"world_size": 1}).errors
