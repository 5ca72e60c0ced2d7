"""Completion of a run: the last checkpoint has all steps and is intact, on all ranks."""

import complete_checkpoint
import pytest
import torch.distributed as dist

from mb_checkpoint import CheckpointConfig, CheckpointNotFoundError
from mb_checkpoint.load.completion import (
    resumed_step,
    verify_last_checkpoint,
    verify_last_checkpoint_on_all_ranks,
)


@pytest.fixture
def section(tmp_path):
    for step in (4, 6):
        complete_checkpoint.save(tmp_path, step)
    return CheckpointConfig(load=str(tmp_path), save=str(tmp_path))


def damage(section, step):
    (data,) = complete_checkpoint.Path(section.load).glob(f"iter_{step:07d}/*.distcp")
    data.write_bytes(data.read_bytes()[:-1] + b"!")


def test_the_last_checkpoint_is_read_completely(section, tmp_path):
    read = []
    chosen = verify_last_checkpoint(
        section, train_iters=6, progress=lambda done, total: read.append((done, total))
    )
    assert chosen.path == tmp_path / "iter_0000006"
    done, total = read[-1]
    assert 0 < done <= total
    assert verify_last_checkpoint(section, train_iters=7) is None


def test_a_damaged_last_checkpoint_does_not_complete_a_run(section):
    damage(section, 6)
    assert verify_last_checkpoint(section, train_iters=6) is None
    section.verify_integrity = False
    assert verify_last_checkpoint(section, train_iters=6).step == 6


def test_a_non_persistent_checkpoint_does_not_complete_a_run(section, tmp_path):
    complete_checkpoint.save(tmp_path / "non_persistent", 8)
    assert verify_last_checkpoint(section, train_iters=8) is None
    complete_checkpoint.save(tmp_path, 8)
    assert verify_last_checkpoint(section, train_iters=8).path == tmp_path / "iter_0000008"


def test_without_any_intact_checkpoint_the_error_is_that_of_a_load(section):
    damage(section, 4)
    damage(section, 6)
    with pytest.raises(CheckpointNotFoundError, match=r"no complete checkpoint .*iter_0000004: .* differs"):
        verify_last_checkpoint(section, train_iters=4)


def test_the_step_to_resume_from_is_read_from_names(section):
    assert resumed_step(section) == 6
    damage(section, 6)
    assert resumed_step(section) == 6
    assert resumed_step(CheckpointConfig()) == 0


def test_ranks_verify_together(section, tmp_path):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        assert verify_last_checkpoint_on_all_ranks(section, train_iters=6).path == tmp_path / "iter_0000006"
        assert verify_last_checkpoint_on_all_ranks(section, train_iters=7) is None
        damage(section, 6)
        assert verify_last_checkpoint_on_all_ranks(section, train_iters=6) is None
    finally:
        dist.destroy_process_group()


def verify_if_seen_by(load, rank):
    """Return the result on this rank if only one rank sees the last step."""
    section = CheckpointConfig(load=load, save=load)
    return verify_last_checkpoint_on_all_ranks(section, train_iters=1, seems_complete=dist.get_rank() == rank)


def test_rank_0_decides_whether_all_ranks_verify(tmp_path):
    mb_host = pytest.importorskip("mb_host")
    # not "fork": the fork server of this process is that of `script_ranks`, with torch as it is installed
    with mb_host.RankPool(2, timeout_seconds=120, start_method="spawn") as ranks:
        for rank in (0, 1):
            assert ranks.run(verify_if_seen_by, str(tmp_path), rank) == [None, None]
