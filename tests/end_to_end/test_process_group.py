"""A process group that the user made: it is used, and left as it was."""

import torch
from runs import train_here
from torch import distributed


def test_a_process_group_that_is_there_survives_runs(overrides, tmp_path):
    words = [*overrides, "train.train_iters=1", "validation.eval_interval=null", "checkpoint.save=null"]
    distributed.init_process_group(
        "gloo", store=distributed.HashStore(), rank=0, world_size=1, group_name="made by the user"
    )
    try:
        before = distributed.group.WORLD
        for run in ("one", "another"):
            assert train_here(words, tmp_path / run).step == 1
            assert distributed.group.WORLD is before
        value = torch.ones(1)
        distributed.all_reduce(value)
        assert value.item() == 1.0
    finally:
        distributed.destroy_process_group()


def test_without_one_a_run_closes_its_own(overrides, tmp_path):
    words = [*overrides, "train.train_iters=1", "validation.eval_interval=null", "checkpoint.save=null"]
    train_here(words, tmp_path / "run")
    assert not distributed.is_initialized()
