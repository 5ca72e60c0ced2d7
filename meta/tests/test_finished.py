"""Completion of a run: all ranks agree, even if only one of them sees the last checkpoint."""

import pytest

import mb_host

mb_host.install()  # must run before megatron is imported

pytest.importorskip("mb_trainer.finished")


def look(load, seen_by):
    """Return the result on a rank if only the rank `seen_by` sees the last step."""
    import torch.distributed as dist  # imported in the process of the rank

    from mb_trainer.config import CheckpointConfig
    from mb_trainer.finished import last_checkpoint_of_all

    there = dist.get_rank() == seen_by
    return last_checkpoint_of_all(CheckpointConfig(load=load, save=load), steps=1, seems_there=there)


def test_rank_0_decides_whether_all_ranks_look(tmp_path):
    with mb_host.RankPool(2, timeout_seconds=120) as ranks:
        for seen_by in (0, 1):
            assert ranks.run(look, str(tmp_path), seen_by) == [None, None]
