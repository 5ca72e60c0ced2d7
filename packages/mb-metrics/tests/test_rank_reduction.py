"""Metrics over the ranks of a group: two gloo processes make every call and print what was written."""

import json
import math
import subprocess
import sys

import pytest

pytest.importorskip("torch")

from mb_metrics import Metrics

RANK = """
import json, sys
import torch
import torch.distributed as dist
from mb_metrics import JsonlSink, Metrics, read_jsonl

rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
count = dict(calls=0)
gather = dist.all_gather_into_tensor

def counting(*args, **settings):
    count["calls"] += 1
    return gather(*args, **settings)

dist.all_gather_into_tensor = counting

def metrics(name):
    how = {"lm loss": "mean", "tokens": "sum", "memory/x": "max", "last stage": "max", "no_rank": "sum", "bad": "max"}
    return Metrics(
        [JsonlSink(f"{folder}/{name}.jsonl")] if rank == 0 else [],
        log_interval=2, group=dist.group.WORLD, reduce=how, wall_clock=lambda: 0.0,
        samplers=[lambda step: {"memory/x": 5.0 - rank}],
    )

with metrics("whole") as whole:
    for step in (1, 2, 3):
        values = {
            "lm loss": torch.tensor(float(step + rank)), "tokens": 10 * (rank + 1), "mine": torch.tensor(rank + 0.5),
            "bad": float("nan") if step == 2 and rank == 1 else 1.0,
        }
        if rank == 1:
            values["last stage"] = torch.tensor([7.0])
        whole.record(step, values)
    whole.evaluation(3, {"lm loss": torch.tensor(2.0 + rank)})
calls = count["calls"]
try:
    with metrics("failed") as failed:
        failed.record(1, {"lm loss": torch.tensor(1.0), "tokens": 1, "mine": 3.0})
        raise KeyError("no further calls can be relied on")
except KeyError:
    pass
dist.barrier()
if rank == 0:
    rows = {name: list(read_jsonl(f"{folder}/{name}.jsonl")) for name in ("whole", "failed")}
    print(json.dumps({"calls": calls, **rows}))
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), str(folder)], stdout=subprocess.PIPE, text=True
        )
        for rank in (0, 1)
    ]
    try:
        (text, _), _ = [rank.communicate(timeout=120) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0]
    return json.loads(text)


def test_each_step_is_reduced_as_configured_and_the_rest_is_this_ranks(written):
    rows = [
        {
            name: value
            for name, value in row.items()
            if name in ("step", "lm loss", "tokens", "mine", "memory/x")
        }
        for row in written["whole"][:3]
    ]
    assert rows == [
        {"step": 1, "lm loss": 1.5, "tokens": 30, "mine": 0.5},
        {"step": 2, "lm loss": 2.5, "tokens": 30, "mine": 0.5, "memory/x": 5.0},
        {"step": 3, "lm loss": 3.5, "tokens": 30, "mine": 0.5},
    ]


def test_a_metric_of_one_rank_is_known_and_one_of_no_rank_is_not(written):
    assert [row.get("last stage") for row in written["whole"][:3]] == [7.0, 7.0, 7.0]
    assert not any("no_rank" in row for row in written["whole"])


def test_a_nan_of_any_rank_is_seen(written):
    assert [math.isnan(row["bad"]) for row in written["whole"][:3]] == [False, True, False]


def test_an_evaluation_is_reduced_too(written):
    assert written["whole"][3]["lm loss validation"] == 2.5


def test_one_collective_for_all_steps_and_metrics(written):
    # The interval of steps 1 and 2, what is written before the evaluation, and the evaluation.
    assert written["calls"] == 3


def test_after_an_exception_no_collective_is_started(written):
    (row,) = written["failed"]
    assert {name: value for name, value in row.items() if name in ("lm loss", "tokens", "mine")} == {
        "mine": 3.0
    }


def test_a_reduction_is_one_that_is_known(recorder):
    with pytest.raises(ValueError, match=r"unknown reduction .*'median'"):
        Metrics([recorder], group=object(), reduce={"lm loss": "median"})


def test_a_reduction_needs_a_group(recorder):
    with pytest.raises(ValueError, match="no group to reduce lm loss over"):
        Metrics([recorder], reduce={"lm loss": "mean"})
