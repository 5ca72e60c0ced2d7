"""The diagnosis of all ranks of a job: differences between nodes, collectives, the speed of each rank. Imports torch.

For processes started by torchrun or srun, all of which call `examine_ranks`.
"""

import json
import os
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from mb_guard.doctor import Finding, as_data, as_text, exit_code, find_problems, read_facts, verdict
from mb_guard.nodes import differences

SLOW = 1.3
"""Multiple of the median time of a matrix product above which a rank is slow."""


def examine_ranks(folder: Path, *, as_json: bool) -> int:
    """Compare the nodes, check the collectives, print the result on rank 0, and return the exit code. Collective.

    The first rank of each node reads the facts about it. The process group is created here, and destroyed.
    """
    device = join()
    is_first_of_node = os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", "0")) == "0"
    facts = read_facts(folder, os.environ) if is_first_of_node else None
    diagnosis = facts and as_data(facts, find_problems(facts))
    nodes: list[dict[str, Any]] = [each for each in gather(diagnosis) if each]
    result = check_collectives(device)
    is_first_rank = dist.get_rank() == 0
    dist.destroy_process_group()
    findings = [
        *differences(nodes),
        *collective_findings(result, nvlinks=nodes[0]["nvlinks"], nodes=len(nodes)),
    ]
    if not is_first_rank or facts is None:
        return exit_code(findings)
    everything = [*findings, *find_problems(facts)]
    if as_json:
        data = {
            "nodes": nodes,
            "collectives": asdict(result),
            "findings": [asdict(each) for each in findings],
        }
        text = json.dumps({"verdict": verdict(everything).removeprefix("verdict: "), **data})
    else:
        text = "\n".join(
            [
                f"nodes        {len(nodes)}: {', '.join(node['machine']['host'] for node in nodes)}",
                result.line(),
                *map(str, findings),
                "",
                f"The first node, {facts.machine.host}:",
                as_text(facts, everything[len(findings) :]).rpartition("\n")[0],
                verdict(everything),
            ]
        )
    sys.stdout.write(text + "\n")
    return exit_code(everything)


@dataclass(frozen=True, slots=True, kw_only=True)
class Collectives:
    """Result of the checks, equal on all ranks."""

    ranks: int
    """Number of ranks."""
    backend: str
    mib: int
    """Size of the message in MiB."""
    seconds: float
    """Mean time of an all-reduce on the slowest rank."""
    bus_gb_per_second: float
    """GB that each of n ranks sends per second, as nccl-tests reports it: 2 (n - 1) / n of the message; 0 for one."""
    wrong_ranks: tuple[int, ...]
    """Ranks whose sum was wrong."""
    slow_ranks: dict[int, float]
    """Rank to the multiple of the median time of a matrix product."""

    def line(self) -> str:
        """Return one line of text."""
        return (
            f"ranks        {self.ranks} over {self.backend}: an all-reduce of {self.mib} MiB takes "
            f"{1000 * self.seconds:.2f} ms, {self.bus_gb_per_second:.2f} GB/s"
        )


def join(*, timeout_seconds: float = 60.0) -> torch.device:
    """Join the process group of the launcher's environment, and return the device of this rank. Collective.

    The device becomes the current one.

    Raises:
        dist.DistError: a rank does not arrive in time.
    """
    local_rank = int(os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", "0")))
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", local_rank % torch.cuda.device_count()) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    backend = "cuda:nccl,cpu:gloo" if on_gpu else "gloo"
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout_seconds))
    return device


def gather(value: Any) -> list[Any]:
    """Return the values of all ranks, by rank. Collective."""
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def check_collectives(device: torch.device) -> Collectives:
    """Verify a sum over all ranks, and measure its bandwidth and the speed of each rank. Collective."""
    ranks = dist.get_world_size()
    mib, rounds = (64, 10) if device.type == "cuda" else (4, 5)
    # Rank r adds r + 1: the sum of 1 to n is exact in float32.
    values = torch.full((mib * 2**20 // 4,), float(dist.get_rank() + 1), device=device)
    dist.all_reduce(values)
    right = bool((values == ranks * (ranks + 1) / 2).all())
    dist.all_reduce(values.zero_())  # zeros, which the repeated sums below keep finite
    _synchronize(device)
    dist.barrier()
    start = time.perf_counter()
    for _ in range(rounds):
        dist.all_reduce(values)
    _synchronize(device)
    seconds = (time.perf_counter() - start) / rounds
    measured = gather((right, seconds, _product_seconds(device)))
    slowest = max(each[1] for each in measured)
    median = statistics.median(each[2] for each in measured)
    return Collectives(
        ranks=ranks,
        backend="nccl" if device.type == "cuda" else "gloo",
        mib=mib,
        seconds=slowest,
        bus_gb_per_second=2 * (ranks - 1) / ranks * mib * 2**20 / slowest / 1e9,
        wrong_ranks=tuple(rank for rank, each in enumerate(measured) if not each[0]),
        slow_ranks={rank: each[2] / median for rank, each in enumerate(measured) if each[2] > SLOW * median},
    )


def _product_seconds(device: torch.device) -> float:
    """Return the best time of a matrix product, which other processes on the machine disturb least."""
    size = 4096 if device.type == "cuda" else 256
    matrix = torch.ones(size, size, device=device)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        matrix @ matrix
        _synchronize(device)
        times.append(time.perf_counter() - start)
    return min(times)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def collective_findings(result: Collectives, *, nvlinks: int | None, nodes: int) -> list[Finding]:
    """Return what is wrong or slow about the ranks."""
    findings = []
    if result.wrong_ranks:
        findings.append(
            Finding(
                level="problem",
                about="all-reduce",
                text=f"wrong sums on ranks {', '.join(map(str, result.wrong_ranks))}",
                fix="Look for faulty GPUs or links; NCCL_ALGO=Ring and NCCL_NVLS_ENABLE=0 narrow it down.",
            )
        )
    for rank, factor in result.slow_ranks.items():
        findings.append(
            Finding(
                level="warning" if result.backend == "nccl" else "note",
                about=f"rank {rank}",
                text=f"takes {factor:.1f} times as long as the median for the same matrix product",
                fix="Every step waits for it.",
            )
        )
    if nodes == 1 and nvlinks and result.ranks > 1 and result.bus_gb_per_second < 50:
        findings.append(
            Finding(
                level="warning",
                about="all-reduce",
                text=f"{result.bus_gb_per_second:.1f} GB/s within a node that has NVLink",
                fix="Look at NCCL_P2P_DISABLE and `nvidia-smi topo -m`.",
            )
        )
    return findings
