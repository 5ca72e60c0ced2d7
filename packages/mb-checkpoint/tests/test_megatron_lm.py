"""Counters and arguments in the form of Megatron-LM's checkpoints."""

from argparse import Namespace

import pytest

from mb_checkpoint.errors import TrainStateError
from mb_checkpoint.formats.megatron_lm import counters_of, layout_of


def test_counters_come_from_the_step_and_the_arguments():
    arguments = Namespace(consumed_train_samples=400, consumed_valid_samples=None)
    common = {"iteration": 50, "args": arguments, "num_floating_point_operations_so_far": 7.0}
    found = counters_of(common, source="here")
    names = ("step", "consumed_train_samples", "skipped_train_samples", "consumed_valid_samples")
    assert [found[name] for name in names] == [50, 400, 0, 0]
    assert found["floating_point_operations_so_far"] == 7


@pytest.mark.parametrize("common", [{"iteration": 50}, {"args": Namespace()}])
def test_a_checkpoint_without_counters_is_rejected(common):
    with pytest.raises(TrainStateError, match=r"here: holds no counters.*pretrained_checkpoint"):
        counters_of(common, source="here")


def test_the_layout_is_that_of_the_arguments():
    assert layout_of({}) is None
    assert layout_of({"args": Namespace(tensor_model_parallel_size=2)}) == {
        "tensor_model_parallel_size": 2,
        "pipeline_model_parallel_size": 1,
        "expert_model_parallel_size": 1,
        "model_chunks": 1,
    }
