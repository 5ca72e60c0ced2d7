from dataclasses import dataclass, replace

import pytest

from mb_data import BatchPadding, required_padding


@dataclass(frozen=True)
class Model:
    """Fields that determine the padding."""

    tensor_model_parallel_size: int = 1
    context_parallel_size: int = 1
    pipeline_model_parallel_size: int = 1
    expert_model_parallel_size: int = 1
    sequence_parallel: bool = False
    tp_comm_overlap: bool = False
    fp8: str | None = None
    fp4: str | None = None


@pytest.mark.parametrize(
    ("changes", "padding"),
    [
        ({}, BatchPadding()),
        ({"tensor_model_parallel_size": 4}, BatchPadding()),
        ({"tensor_model_parallel_size": 4, "sequence_parallel": True}, BatchPadding(multiple=4)),
        ({"context_parallel_size": 3}, BatchPadding(multiple=6, sequence_multiple=6)),
        (
            {"tensor_model_parallel_size": 4, "sequence_parallel": True, "context_parallel_size": 2},
            BatchPadding(multiple=8, sequence_multiple=4),
        ),
        ({"fp8": "hybrid"}, BatchPadding(multiple=32)),
        ({"fp4": "e2m1", "context_parallel_size": 3}, BatchPadding(multiple=96, sequence_multiple=6)),
        ({"fp8": "hybrid", "context_parallel_size": 2}, BatchPadding(multiple=64, sequence_multiple=4)),
        ({"pipeline_model_parallel_size": 2}, BatchPadding(to_max_length=True)),
        ({"expert_model_parallel_size": 2}, BatchPadding(to_max_length=True)),
        ({"tp_comm_overlap": True}, BatchPadding(to_max_length=True)),
    ],
)
def test_parallelism_and_precision_require_padding(changes, padding):
    assert required_padding(replace(Model(), **changes)) == padding
