"""Who am I: rank and world from the launcher's variables."""

import pytest

from mb_trainer.processes import World, WorldError, read_world


def test_no_launcher_means_one_process_that_speaks():
    assert read_world({}) == World(rank=0, world_size=1, local_rank=0)
    assert read_world({}).is_voice


def test_torchrun_comes_before_slurm():
    environment = {
        "RANK": "3",
        "WORLD_SIZE": "8",
        "LOCAL_RANK": "1",
        "SLURM_PROCID": "0",
        "SLURM_NTASKS": "2",
    }
    assert read_world(environment) == World(rank=3, world_size=8, local_rank=1)


def test_srun_without_torchrun():
    environment = {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_LOCALID": "1"}
    assert read_world(environment) == World(rank=1, world_size=2, local_rank=1)


@pytest.mark.parametrize(
    "environment", [{"RANK": "x", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}, {"WORLD_SIZE": "2"}]
)
def test_a_malformed_rank_is_an_error_never_rank_0(environment):
    with pytest.raises(WorldError, match=r"RANK: must be a whole number"):
        read_world(environment)


def test_a_rank_outside_the_world_is_an_error():
    with pytest.raises(WorldError, match=r"RANK=2: lies outside the world of WORLD_SIZE=2"):
        read_world({"RANK": "2", "WORLD_SIZE": "2", "LOCAL_RANK": "0"})
