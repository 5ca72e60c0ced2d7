"""Two processes: one is stopped by a simulated fault, and the other one reports it."""

import random
import time
from datetime import timedelta

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.multiprocessing as mp  # noqa: E402

from mb_resilience import FaultToleranceConfig, HangReporter, SimulatedFault, agree_on_fault  # noqa: E402
from mb_resilience.hangs.reporter import stack_file_name  # noqa: E402

FAULT = FaultToleranceConfig(simulated_fault_type="rank_hung", simulated_fault_rank=1)


def train(rank, port, folder):
    patience = timedelta(seconds=300)
    store, own = (dist.TCPStore("127.0.0.1", port, None, False, patience) for _ in range(2))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=patience)
    fault = agree_on_fault(FAULT, rng=random.Random(rank), store=store, rank=rank, world_size=2)
    reporter = HangReporter(seconds=2.5, store=own, rank=rank, world_size=2, folder=folder)
    with reporter as progress:
        for step in range(1, 1_000_000):
            progress.note("step", step)
            dist.all_reduce(torch.ones(1))
            if step == 5:
                SimulatedFault(fault, rank=rank).__enter__()


def test_stopped_rank_is_reported(tmp_path):
    server = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    ranks = [
        mp.get_context("fork").Process(target=train, args=(rank, server.port, tmp_path)) for rank in (0, 1)
    ]
    requested = "check rank 1, which sends no heartbeats: stopped, dead, or on an unreachable machine"
    report, deadline = tmp_path / "hang_report.txt", time.monotonic() + 240
    try:
        for process in ranks:
            process.start()
        while (
            not report.exists() or requested not in report.read_text()
        ):  # on a busy machine other reports may come first
            assert all(process.is_alive() for process in ranks)
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        for process in ranks:
            process.kill()
            process.join()
    (waiting,) = [line for line in report.read_text().splitlines() if line.startswith("  rank 0: step")][-1:]
    assert "torch/distributed" in waiting
    assert "all_reduce" in (tmp_path / stack_file_name()).read_text()
