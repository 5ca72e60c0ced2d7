"""Several runs in one program on several ranks, as in a script that pretrains and then finetunes."""

import os
import socket
import subprocess
import sys

import pytest
import torch
from runs import losses, run_ranks

from mb_loop import Callback
from mb_trainer import pretrain
from mb_trainer.requests import read_request

PROGRAM = """
import sys
from pathlib import Path
from mb_trainer import finetune, pretrain
from mb_trainer.requests import read_request

folder, *words = sys.argv[1:]
runs = [("first", 1), ("second", 2), ("third", 1)]
for name, tensor_parallel in runs:
    given = read_request([*words, f"model.tensor_model_parallel_size={tensor_parallel}"])
    pretrain(given.config, provenance=given.provenance, out=Path(folder, name))
given = read_request([*words, f"checkpoint.pretrained_checkpoint={folder}/first"])
finetune(given.config, provenance=given.provenance, out=Path(folder, "finetuned"))
"""


@pytest.fixture
def unused_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["torchrun", pytest.param("srun", marks=pytest.mark.matrix)])
def test_a_program_pretrains_and_finetunes_on_two_ranks(overrides, tmp_path, launcher, unused_port):
    words = [*overrides, "train.train_iters=2", "validation.eval_iters=0"]
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, tmp_path / "program.py", tmp_path, *words]
    ranks = [{"WORLD_SIZE": "2", "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(2)]
    if launcher == "torchrun":
        command[1:1] = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        ranks = [{}]
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(unused_port), "OMP_NUM_THREADS": "1"}
    started = [subprocess.Popen(command, env={**os.environ, **address, **rank}) for rank in ranks]
    try:
        assert [process.wait(timeout=300) for process in started] == [0] * len(ranks)
    finally:
        for process in started:
            process.kill()
    assert losses(tmp_path / "third") == losses(tmp_path / "first")
    assert losses(tmp_path / "second").keys() == losses(tmp_path / "finetuned").keys() == {1, 2}


class BeganAnHourBefore(Callback):
    """Counts time before the trainer began."""

    def on_data_init_start(self, context):
        context.state.start_time -= 3600


def stop_and_train_elsewhere(words, out):
    """Train until the time is up, then train another run in the process group of the caller."""
    outcomes = []
    for name, callbacks in (("stopped", [BeganAnHourBefore()]), ("other", [])):
        request = read_request([*words, "train.exit_duration_in_mins=60", "train.train_iters=4"])
        rank = str(torch.distributed.get_rank())
        outcome = pretrain(
            request.config,
            out=out / name,
            provenance=request.provenance,
            callbacks=callbacks,
            environment={"RANK": rank, "WORLD_SIZE": "2", "LOCAL_RANK": rank},
        )
        outcomes.append((outcome.reason, outcome.step))
    return outcomes


@pytest.mark.slow
def test_the_stop_of_a_run_does_not_stop_the_next_one_of_the_process(overrides, tmp_path):
    outcomes = run_ranks(stop_and_train_elsewhere, 2, overrides, tmp_path, timeout_seconds=120)
    assert [dict(rank)["finished"] for rank in outcomes] == [4, 4]
    assert [rank[0][0] for rank in outcomes] == ["duration", "duration"]
