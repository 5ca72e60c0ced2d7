"""Processes with gloo and a TCPStore, one of which receives a signal."""

import os
import signal
import time
from datetime import timedelta

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.multiprocessing as mp  # noqa: E402

from mb_resilience import AgreedStop, SignalWatcher  # noqa: E402


def train(rank, world_size, port, signalled_rank, folder):
    store = dist.TCPStore("127.0.0.1", port, world_size, rank == 0, timedelta(seconds=60))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    with SignalWatcher() as watcher:
        stop = AgreedStop(watcher, store=store, rank=rank, world_size=world_size, attempt="7")
        for step in range(1, 500):
            dist.all_reduce(torch.ones(1))
            time.sleep(0.001 * rank)
            if rank == signalled_rank and step == 5:
                os.kill(os.getpid(), signal.SIGTERM)
            why = stop(step)
            if why is not None:
                break
    (folder / f"{rank}").write_text(f"{step} {why}")
    dist.barrier()
    dist.destroy_process_group()


def test_two_processes_stop_after_the_same_step_if_one_receives_sigterm(tmp_path):
    server = dist.TCPStore("127.0.0.1", 0, 1, True, wait_for_workers=False)
    port = server.port
    del server
    mp.start_processes(train, args=(2, port, 1, tmp_path), nprocs=2, start_method="fork")
    answers = {path.read_text() for path in tmp_path.iterdir()}
    assert answers in ({"6 SIGTERM on rank 1"}, {"7 SIGTERM on rank 1"})
