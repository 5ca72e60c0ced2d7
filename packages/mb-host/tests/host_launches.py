"""Functions for the launcher's tests: correct and faulty ranks."""

import multiprocessing
import os
import signal
import sys
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist


@dataclass(frozen=True)
class RankSummary:
    rank: int
    sum_of_ranks: int


def summarize() -> RankSummary:
    total = torch.tensor(dist.get_rank())
    dist.all_reduce(total)
    return RankSummary(rank=dist.get_rank(), sum_of_ranks=int(total))


def environment(*names: str) -> tuple:
    return tuple(os.environ.get(name) for name in names)


def raise_on(rank: int) -> None:
    if dist.get_rank() == rank:
        error = ValueError(f"boom on {rank}")
        error.__notes__ = ["a note, which follows the message"]  # as `add_note` of Python 3.11
        raise error
    dist.barrier()


def raise_everywhere() -> None:
    raise ValueError("boom")


def kill(rank: int) -> None:
    if dist.get_rank() == rank:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def crash(rank: int) -> None:
    if dist.get_rank() == rank:
        os.kill(os.getpid(), signal.SIGSEGV)
    dist.barrier()


def exit_on(rank: int) -> None:
    if dist.get_rank() == rank:
        os._exit(3)
    dist.barrier()


def system_exit() -> None:
    sys.exit(4)


def hang_on(rank: int) -> None:
    if dist.get_rank() == rank:
        sleep_for_ever()


def sleep_for_ever() -> None:
    while True:
        time.sleep(60)


def start_a_child() -> int:
    """Start a process that outlives the run, and return its ID."""
    return os.spawnlp(os.P_NOWAIT, "sleep", "sleep", "600")


def unpicklable() -> object:
    return lambda: None


def obstacle_in_a_fork_of_threads() -> str | None:
    from mb_host.ranks.rank import fork_obstacle

    with multiprocessing.get_context("fork").Pool(1) as pool:  # it has threads
        return pool.apply(fork_obstacle)


def write(text: str) -> None:
    print(text, flush=True)


def process_id() -> int:
    return os.getpid()


def parent_id() -> int:
    return os.getppid()


def kill_parent() -> None:
    os.kill(os.getppid(), signal.SIGKILL)
    sleep_for_ever()


def loaded(*names: str) -> list[bool]:
    return [name in sys.modules for name in names]


def cuda_device() -> tuple:
    return torch.cuda.current_device(), torch.ones(1, device="cuda").device.type
