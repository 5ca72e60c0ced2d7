"""NUMA binding: each process of a machine runs on the CPUs of its GPU's NUMA node. The standard library only.

A process on the CPUs of another NUMA node than its GPU's crosses the link between the sockets with every copy and every
kernel launch. Linux allocates memory on the node of the CPU that first touches it, so that binding to CPUs also
determines the location of host memory.
"""

import json
import os
from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path

from mb_launch.hardware.gpus import SYSTEM, THIS_MACHINE, GpuFacts, GpuSources, read_gpus, visible_gpus

BINDING = "MB_NUMA_BINDING"
"""Environment variable with the NUMA nodes and CPUs of all local ranks, set by the launcher."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NumaBinding:
    """The NUMA node of one local rank, and the CPUs there that this process may use."""

    node: int
    cpus: str
    """In the kernel's notation: "0-15,64-79"."""


def set_numa_environment(
    environment: MutableMapping[str, str],
    *,
    processes: int,
    enabled: bool = True,
    allowed: Collection[int] | None = None,
    sources: GpuSources = THIS_MACHINE,
) -> None:
    """Choose the binding of each local rank and store it in the environment, for `bind_this_process`.

    Nothing is stored if there is no GPU or a single NUMA node, or if `enabled` is false.

    Args:
        environment: Of the processes; its CUDA_VISIBLE_DEVICES determines the GPU of each local rank.
        processes: Number of local ranks.
        enabled: Whether to bind.
        allowed: CPUs that this process may use; None: those that the system reports.
        sources: Folders and programs that describe GPUs and nodes.
    """
    environment.pop(BINDING, None)
    if allowed is None:
        allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()
    if not enabled or len(numa_nodes(system=sources.system)) < 2:
        return
    gpus = visible_gpus(read_gpus(sources=sources), environment)
    bindings = choose_bindings(gpus, processes=processes, allowed=allowed, system=sources.system)
    if any(bindings):
        environment[BINDING] = json.dumps([each and asdict(each) for each in bindings])


def choose_bindings(
    gpus: Sequence[GpuFacts | None], *, processes: int, allowed: Collection[int], system: Path = SYSTEM
) -> list[NumaBinding | None]:
    """Return the binding of each local rank, whose GPU is the one with its index.

    A rank has no binding (None) if its GPU or node is unknown, if no CPU of the node is allowed, or on a machine with
    a single node.

    Args:
        gpus: As `mb_launch.hardware.gpus.visible_gpus` returns them.
        processes: Number of local ranks.
        allowed: CPUs that this process may use; a container or `taskset` may exclude some.
        system: The kernel's /sys.
    """
    nodes = numa_nodes(system=system)
    chosen: list[NumaBinding | None] = []
    for rank in range(processes):
        gpu = gpus[rank] if rank < len(gpus) else None
        node = None if gpu is None else gpu.numa_node
        cpus = sorted({*nodes.get(node, ())} & {*allowed}) if node is not None and len(nodes) > 1 else []
        chosen.append(NumaBinding(node=node, cpus=as_cpu_list(cpus)) if node is not None and cpus else None)
    return chosen


def bind_this_process(
    environment: Mapping[str, str],
    *,
    local_rank: int,
    bind: Callable[[int, Collection[int]], object] | None = None,
) -> str | None:
    """Bind this process, and all threads and processes that it starts afterwards, to the CPUs that the launcher chose.

    Call it before libraries start threads, which keep the CPUs of their start.

    Args:
        environment: May have `BINDING`.
        local_rank: Of this process.
        bind: Called with a process id (0: this process) and CPUs; None: `os.sched_setaffinity`.

    Returns:
        A one-line description of the bindings of all local ranks; None if the launcher chose none.
    """
    if BINDING not in environment:
        return None
    bindings = [each and NumaBinding(**each) for each in json.loads(environment[BINDING])]
    own = bindings[local_rank] if local_rank < len(bindings) else None
    if own is not None:
        try:
            (bind or os.sched_setaffinity)(0, cpus_in(own.cpus))
        except OSError as error:  # the CPUs of a container may have changed since
            return (
                f"NUMA binding: CPUs {own.cpus} of node {own.node} cannot be used ({error}); nothing is bound"
            )
    return describe_bindings(bindings)


def describe_bindings(bindings: Sequence[NumaBinding | None]) -> str:
    """Return a one-line description of the bindings of all local ranks."""
    parts = []
    for binding, group in groupby(range(len(bindings)), key=lambda rank: bindings[rank]):
        ranks = [*group]
        span = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]}-{ranks[-1]}"
        where = "no node" if binding is None else f"node {binding.node} (CPUs {binding.cpus})"
        parts.append(f"{span}: {where}")
    return f"NUMA binding: {'; '.join(parts)}"


def numa_nodes(*, system: Path = SYSTEM) -> dict[int, tuple[int, ...]]:
    """Return the CPUs of each NUMA node. Nodes without CPUs, such as those of GPU memory, are omitted."""
    cpus_of_node = {}
    for folder in (system / "devices/system/node").glob("node[0-9]*"):
        try:
            cpus = cpus_in((folder / "cpulist").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if cpus:
            cpus_of_node[int(folder.name.removeprefix("node"))] = cpus
    return cpus_of_node


def cpus_in(text: str) -> tuple[int, ...]:
    """Parse a list of CPUs in the kernel's notation: "0-3,8" is 0, 1, 2, 3 and 8.

    Raises:
        ValueError: The text is not such a list.
    """
    cpus: list[int] = []
    for part in text.strip().split(",") if text.strip() else []:
        first, _, last = part.partition("-")
        cpus += range(int(first), int(last or first) + 1)
    return tuple(cpus)


def as_cpu_list(cpus: Sequence[int]) -> str:
    """Return sorted CPUs in the kernel's notation."""
    parts = []
    for _, group in groupby(enumerate(cpus), key=lambda pair: pair[1] - pair[0]):
        run = [cpu for _, cpu in group]
        parts.append(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}")
    return ",".join(parts)
