"""Job that srun starts without torchrun: the tasks of a step find each other by Slurm's variables."""

import socket

import pytest
from runs import losses, start_mb


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("localhost", 0))
        return one.getsockname()[1]


@pytest.mark.slow
def test_two_tasks_of_a_step_meet_on_its_first_node(overrides, tmp_path):
    step = {
        "SLURM_JOB_ID": "7",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NODELIST": "localhost,nowhere[1-2]",
        "SLURM_NTASKS": "2",
        "MASTER_PORT": str(free_port()),
    }
    words = [*overrides, "train.train_iters=2", f"--out={tmp_path}"]
    tasks = [
        start_mb("pretrain", *words, environment={**step, "SLURM_PROCID": rank, "SLURM_LOCALID": rank})
        for rank in ("0", "1")
    ]
    printed = [task.communicate(timeout=300)[0] for task in tasks]
    assert [task.returncode for task in tasks] == [0, 0]
    assert printed[0] == ""  # only the last rank prints
    assert len(losses(tmp_path)) == 2
