"""Parallel layouts to sweep over."""

from types import SimpleNamespace

from mb_plan.sweep.layouts import layout_axes, splits_sequences_where_possible


def model(**fields):
    known = {"num_layers": 12, "num_attention_heads": 6, "seq_length": 8192}
    return SimpleNamespace(**{**known, **fields})


def values(model, **options):
    given = {"world_size": 64, "node_gpus": 8, "is_kept": lambda path: False, **options}
    return {each.path.partition(".")[2]: list(each.values) for each in layout_axes(model, **given)}


def test_sizes_follow_from_heads_layers_sequence_and_the_node():
    assert values(model()) == {
        "tensor_model_parallel_size": [1, 2],
        "sequence_parallel": [True, False],
        "pipeline_model_parallel_size": [1, 2, 4, 8],
        "virtual_pipeline_model_parallel_size": [None, 2, 3, 4, 6],
        "context_parallel_size": [1, 2, 4],
        "micro_batch_size": [1, 2, 4],
    }


def test_experts_are_split_by_their_number():
    assert values(model(num_moe_experts=24))["expert_model_parallel_size"] == [1, 2, 4, 8]


def test_a_size_that_the_user_set_is_kept():
    kept = values(model(), is_kept=lambda path: path == "model.tensor_model_parallel_size")
    assert "tensor_model_parallel_size" not in kept


def test_no_size_exceeds_the_number_of_gpus():
    assert values(model(), world_size=2)["pipeline_model_parallel_size"] == [1, 2]


def test_tensor_parallelism_comes_with_sequence_parallelism():
    tensor, sequence = "model.tensor_model_parallel_size", "model.sequence_parallel"
    points = [(1, False), (2, True), (2, False)]
    assert [splits_sequences_where_possible({tensor: tp, sequence: sp}) for tp, sp in points] == [
        True,
        True,
        False,
    ]
