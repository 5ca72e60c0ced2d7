"""Per-module parallelism, as rules and sweeps read it."""

import pytest

from mb_config import Axis, Rule, run_sweep
from mb_config.preflight.module_layouts import has_parallelism_per_module, one_replica, rules_per_point

TP, OFFSET = "tensor_model_parallel_size", "language_rank_offset"


@pytest.mark.parametrize(
    ("model", "different"),
    [
        ({}, False),
        ({OFFSET: 0, TP: 2}, False),
        ({OFFSET: 1, TP: 1}, True),
        ({OFFSET: 0, "vision_tensor_model_parallel_size": 2, TP: 2}, False),
        ({OFFSET: 0, "vision_tensor_model_parallel_size": 1, TP: 2}, True),
    ],
)
def test_modules_have_layouts_if_their_ranks_or_sizes_differ(model, different):
    assert has_parallelism_per_module(model) is different


def test_modules_count_as_one_replica():
    sizes = {TP: 2, "pipeline_model_parallel_size": 1, "context_parallel_size": 1}
    assert one_replica({**sizes, OFFSET: 2}, {"world_size": 6}) == {"world_size": 2, "all_processes": 6}
    assert one_replica(sizes, {"world_size": 6}) == {"world_size": 6}
    assert one_replica({**sizes, OFFSET: 2, TP: "two"}, {"world_size": 6}) == {"world_size": 6}
    assert one_replica({**sizes, OFFSET: 2}, {}) == {}


def test_points_of_a_sweep_can_differ_in_their_modules():
    def rule(number, fact):
        def test(size, processes):
            return f"{processes}" if processes != 2 else None

        fields = (f"model.{TP}", f"facts.{fact}")
        return Rule(id=number, fields=fields, test=test, why="w", fix="F.", fails={}, passes={})

    model = {OFFSET: 0, TP: 1, "vision_tensor_model_parallel_size": None}
    rules = rules_per_point([rule("W", "world_size"), rule("A", "all_processes")], model)
    axes = [Axis(path=f"model.{OFFSET}", values=(0, 1)), Axis(path="facts.world_size", values=(2, 3))]
    result = run_sweep({"model": model}, axes, rules)
    assert result.passing == ((0, 0),)
    assert [(group.count, group.rules) for group in result.rejected] == [(2, ("W",)), (1, ("W", "A"))]


def test_rules_of_a_model_of_one_module_are_unchanged():
    rules = (object(),)
    assert rules_per_point(rules, {TP: 2}) == [*rules]
