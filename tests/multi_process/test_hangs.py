"""A rank that does not arrive: the run names it, and continues when it arrives later."""

import re
import time

import pytest
import torch
from runs import run_ranks

from mb_loop import Callback
from mb_trainer import pretrain
from mb_trainer.requests import read_request

NAMED = "check rank 0, which is in step 2 while others are in step 3"


class WaitsForTheReport(Callback):
    """Stays before step 3 until that is reported; on a busy machine others may be before."""

    def __init__(self, report):
        self.report = report

    def on_train_step_start(self, context):
        deadline = time.monotonic() + 240
        self.report.touch()
        while context.state.train_state.step == 2 and NAMED not in self.report.read_text():
            assert time.monotonic() < deadline
            time.sleep(0.02)


def train_and_stay(words, out):
    """Train on a rank; rank 0 stays. The report comes after a hundredth of the timeout, not after half of it."""
    from mb_resilience import monitors  # it imports torch, which the ranks have

    monitors.HANG_REPORT_FRACTION = 0.01
    rank = torch.distributed.get_rank()
    patience = ["dist.distributed_timeout_minutes=100", "dist.distributed_timeout_seconds_after_init=200"]
    request = read_request([*words, "train.train_iters=4", *patience])
    outcome = pretrain(
        request.config,
        out=out,
        provenance=request.provenance,
        callbacks=[WaitsForTheReport(out / "hang_report.txt")] if rank == 0 else [],
        environment={"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank)},
    )
    return outcome.step


@pytest.mark.slow
def test_a_late_rank_is_named_and_the_run_continues_when_it_arrives(overrides, tmp_path):
    assert run_ranks(train_and_stay, 2, overrides, tmp_path, timeout_seconds=400) == [4, 4]
    report = (tmp_path / "hang_report.txt").read_text()
    assert NAMED in report
    assert "\n  rank 0: after step 2, at " in report
    assert "on_train_step_start" in report
    assert "\n  rank 1: step 3, at " in report
    assert re.search(
        r"\n  collectives: rank 1 waits in \w+.*, number \d+ of .*; not called by rank 0 \(", report
    )
    assert "rank 1 resumed after " in report
    (stacks,) = tmp_path.glob("hang_stack_*.txt")
    assert "in on_train_step_start" in stacks.read_text()
    assert "no progress" in (tmp_path / "log.txt").read_text()
