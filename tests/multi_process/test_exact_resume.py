"""`mb verify-resume` as a user types it, with two ranks; `nox -s verify` has the table of all layouts."""

import json

import pytest
from runs import mb

OVERLAPPED = [
    "ddp.use_distributed_optimizer=true",
    "optimizer.use_distributed_optimizer=true",
    "ddp.overlap_grad_reduce=true",
    "ddp.overlap_param_gather=true",
]
SHAPE = ["model.hidden_dropout=0.1", "validation.eval_interval=2", "validation.eval_iters=1"]


@pytest.mark.matrix
def test_two_killed_ranks_resume_exactly(overrides):
    words = [*overrides, *SHAPE, *OVERLAPPED]
    ended = mb("verify-resume", *words, "--nproc=2", "--steps=6", "--cut=3", "--kill", "--json")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = json.loads(ended.stdout)
    assert (found["equal"], found["resumed_at"], found["killed"]) == (True, [3], True)
    compared = {name: line["names"] for name, line in found["compared"].items()}
    assert {"samples", "random streams", "losses", "parameters"} <= compared.keys()
    assert compared["optimizer"] > 30
