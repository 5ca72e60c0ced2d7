"""Training of a small model in several processes with in-process restarts, under injected faults."""

import json
import multiprocessing
import os
import signal
import socket
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import torch
import torch._dynamo  # imported by optimizers: too slow for the short times
import torch.distributed as dist

from mb_resilience import InProcessRestartConfig
from mb_resilience.restarts.nvrx import run_with_restarts
from mb_resilience.restarts.rank_keeper import keep_run_alive

SHORT_TIMES = {
    "monitor_thread_interval": 0.2,
    "monitor_process_interval": 0.2,
    "progress_watchdog_interval": 0.2,
    "heartbeat_interval": 1.0,
    "heartbeat_timeout": 20.0,
    "soft_timeout": 10.0,
    "hard_timeout": 15.0,
    "barrier_timeout": 60.0,
    "completion_timeout": 60.0,
    "last_call_wait": 0.2,
    "termination_grace_time": 0.2,
}
STEPS = 8


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def inject(fault: str) -> None:
    """Let this rank fail."""
    if fault == "raise":
        raise RuntimeError("a planted fault")
    if fault == "bad input":
        raise KeyError("a planted fault")
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if fault == "sleep":
        time.sleep(600)


def train(
    attempt, folder: Path, faults: Mapping[int, tuple[int, str, int]], *, timeout: float = 100.0
) -> str:
    """Train data-parallel replicas from the newest checkpoint on; save after each step. Return the number of attempts.

    `faults`: attempt -> (rank, kind, step).
    """
    dist.init_process_group(
        "gloo",
        store=attempt.store,
        rank=attempt.rank,
        world_size=attempt.world_size,
        timeout=timedelta(seconds=timeout),
    )
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    saved, step = folder / "saved.pt", 0
    if saved.exists():
        loaded = torch.load(saved)
        step = loaded["step"]
        model.load_state_dict(loaded["model"])
        optimizer.load_state_dict(loaded["optimizer"])
    while step < STEPS:
        rank, fault, at = faults.get(attempt.number, (None, None, None))
        if (attempt.rank, step) == (rank, at):
            (folder / "fault").write_text(f"{time.time()}")
            inject(fault)
        inputs = torch.randn(4, 8, generator=torch.Generator().manual_seed(100 * step + attempt.rank))
        loss = model(inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        for each in model.parameters():
            dist.all_reduce(each.grad)
        dist.all_reduce(loss.detach())
        optimizer.step()
        step += 1
        if attempt.rank == 0:
            with (folder / "losses.jsonl").open("a") as file:
                row = {"step": step, "loss": loss.item(), "attempt": attempt.number, "time": time.time()}
                file.write(json.dumps({**row, "faults": [*map(str, attempt.faults)]}) + "\n")
            state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state, folder / "new.pt")
            (folder / "new.pt").replace(saved)
    dist.destroy_process_group()
    return f"{attempt.number}"


def be_rank(rank: int, world_size: int, port: int, folder: Path, faults, usable, settings) -> None:
    """Run one process of a launch."""
    torch.set_num_threads(1)
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": f"{port}",
        "RANK": f"{rank}",
        "WORLD_SIZE": f"{world_size}",
        "LOCAL_WORLD_SIZE": f"{world_size}",
    }

    section = InProcessRestartConfig(enabled=True, granularity="rank", **SHORT_TIMES, **settings)

    def run() -> int:
        try:
            result = run_with_restarts(
                lambda attempt: train(attempt, folder, faults),
                section,
                usable_world_size=usable,
                is_final=lambda error: isinstance(error, KeyError),
            )
        except Exception as error:  # noqa: BLE001 (its text is compared)
            result = f"{type(error).__name__}: {error}"
        (folder / f"rank{rank}").write_text(f"{result}")
        return 0 if result is None or result.isdecimal() else 3

    code = keep_run_alive(run, section)
    (folder / f"code{rank}").write_text(f"{code}")
    os._exit(code)


def launch(
    folder: Path, *, world_size: int, faults: Mapping[int, tuple[int, str, int]], usable=None, **settings
) -> list[int]:
    """Start the processes and wait for them; return their exit codes.

    They are forks of a server that has only imported this module: a fork of the tests' process would inherit groups and
    stores of other tests, whose threads it does not have.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    port = free_port()
    ranks = [
        context.Process(target=be_rank, args=(rank, world_size, port, folder, faults, usable, settings))
        for rank in range(world_size)
    ]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join()
    return [each.exitcode for each in ranks]


def even(ranks: int) -> int:
    """Return the number of ranks that can train if they train in pairs."""
    return ranks // 2 * 2


def losses(folder: Path) -> dict[int, float]:
    """Return the loss of each step; of a repeated step the last one."""
    rows = map(json.loads, (folder / "losses.jsonl").read_text().splitlines())
    return {row["step"]: row["loss"] for row in rows}


def attempts(folder: Path) -> dict[int, list[str]]:
    """Return the faults before each attempt that made a step."""
    rows = map(json.loads, (folder / "losses.jsonl").read_text().splitlines())
    return {row["attempt"]: row["faults"] for row in rows}
