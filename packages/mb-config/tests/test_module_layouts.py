"""Per-module parallelism, as rules and sweeps read it."""

import pytest

from mb_config.preflight.module_layouts import (
    ParallelSizeError,
    has_parallelism_per_module,
    one_replica,
    rules_per_point,
    smallest_world,
)

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


def test_rules_of_a_model_of_one_module_are_unchanged():
    rules = (object(),)
    assert rules_per_point(rules, {TP: 2}) == [*rules]


def test_experts_can_require_more_processes_than_the_dense_part():
    experts = {"num_moe_experts": 16, "expert_model_parallel_size": 4, TP: 2}
    assert smallest_world({**experts, "context_parallel_size": 2}) == 8
    assert smallest_world({**experts, "expert_tensor_parallel_size": 1, "context_parallel_size": 3}) == 12
    assert smallest_world(experts) == 8
    assert smallest_world(experts, follows_megatron_bridge=True) == 4
    assert smallest_world({**experts, "expert_tensor_parallel_size": 2}, follows_megatron_bridge=True) == 8
    assert smallest_world({"num_moe_experts": 16, TP: 2}, follows_megatron_bridge=True) == 2
    with pytest.raises(ParallelSizeError, match="context_parallel_size: must be an integer of at least 1"):
        smallest_world({"context_parallel_size": 0})
