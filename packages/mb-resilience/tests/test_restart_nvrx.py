"""NVRx, if it is installed: a rank that raises leads to a second attempt in the same processes."""

import os
import socket
from datetime import timedelta

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("nvidia_resiliency_ext")

import torch.distributed as dist  # noqa: E402
import torch.multiprocessing as mp  # noqa: E402

from mb_resilience import InProcessRestartConfig  # noqa: E402
from mb_resilience.restart_nvrx import run_with_restarts  # noqa: E402

WAITS = {
    "soft_timeout": 100.0,
    "hard_timeout": 120.0,
    "barrier_timeout": 150.0,
    "completion_timeout": 150.0,
}


def be_rank(rank, port, folder):
    environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{port}", "RANK": f"{rank}", "WORLD_SIZE": "2"}
    os.environ.update(environment)

    def train(attempt):
        dist.init_process_group(
            "gloo", store=attempt.store, rank=attempt.rank, world_size=2, timeout=timedelta(seconds=100)
        )
        saved = folder / "step"
        first = step = int(saved.read_text()) if saved.exists() else 0
        while step < 4:
            if rank == 1 and step == 2 and attempt.number == 0:
                raise RuntimeError("a planted fault")
            dist.all_reduce(torch.ones(1))
            step += 1
            if rank == 0:
                saved.write_text(f"{step}")
            dist.barrier()
        dist.destroy_process_group()
        return attempt.number, first, step

    section = InProcessRestartConfig(enabled=True, granularity="rank", max_iterations=1, **WAITS)
    (folder / f"rank{rank}").write_text(f"{run_with_restarts(train, section)}")


@pytest.mark.slow
def test_rank_that_raises_leads_to_a_second_attempt_from_the_last_saved_step(tmp_path):
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    mp.start_processes(be_rank, args=(port, tmp_path), nprocs=2, start_method="fork")
    assert {(tmp_path / f"rank{rank}").read_text() for rank in (0, 1)} == {"(1, 2, 4)"}
