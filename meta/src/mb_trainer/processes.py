"""The processes of a run: who am I among them, and where they meet. No torch."""

import os
import re
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass


class WorldError(ValueError):
    """The environment describes the processes in a way that cannot be right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """This process among the processes of the run."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    attempt: str = "0"
    """Which start of the same processes this is, as torch elastic counts restarts."""
    address: str | None = None
    """HOST:PORT at which the processes meet; None: where MASTER_ADDR and MASTER_PORT say."""

    @property
    def is_voice(self) -> bool:
        """Whether this rank speaks for all: the last one, which holds the loss under pipeline parallelism."""
        return self.rank == self.world_size - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher:
    """The variables in which a launcher tells a process who it is."""

    name: str
    rank: str
    world_size: str
    local_rank: str


def launcher_of(environment: Mapping[str, str]) -> Launcher | None:
    """Return what started this process among others: torchrun, srun, or None for one process alone.

    An sbatch script, a step with one task and a shell within an allocation have Slurm's variables, too, and are one
    process alone: srun is taken only where it started several tasks in this step.
    """
    if "RANK" in environment or "WORLD_SIZE" in environment:
        return Launcher(name="torchrun", rank="RANK", world_size="WORLD_SIZE", local_rank="LOCAL_RANK")
    tasks = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environment else "SLURM_NTASKS"
    srun = Launcher(name="srun", rank="SLURM_PROCID", world_size=tasks, local_rank="SLURM_LOCALID")
    known = srun.rank in environment and "SLURM_STEP_ID" in environment
    return srun if known and environment.get(tasks, "1") != "1" else None


def is_launched(environment: Mapping[str, str]) -> bool:
    """Say whether torchrun or srun started this process among others."""
    return launcher_of(environment) is not None


def read_world(environment: Mapping[str, str]) -> World:
    """Read rank, world size and local rank as torchrun or srun set them; one process where neither did.

    Raises:
        WorldError: a variable is there but is no number, the rank lies outside the world, or Slurm's list of nodes
            cannot be read.
    """
    launcher = launcher_of(environment)
    if launcher is None:
        return World()
    world = World(
        rank=read_number(environment, launcher.rank, launcher),
        world_size=read_number(environment, launcher.world_size, launcher),
        local_rank=read_number(environment, launcher.local_rank, launcher),
        attempt=environment.get("TORCHELASTIC_RESTART_COUNT", "0"),
        address=address_of_step(environment) if launcher.name == "srun" else None,
    )
    if not 0 <= world.rank < world.world_size:
        raise WorldError(
            f"{launcher.rank}={world.rank}: lies outside the world of {launcher.world_size}={world.world_size} "
            f"processes. Start every process with the launcher that counts them ({launcher.name})."
        )
    return world


def divide_cores(environment: MutableMapping[str, str], *, processes: int) -> None:
    """Give each process its part of the cores as threads, unless OMP_NUM_THREADS is set. To be called before torch."""
    environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes)))


def read_number(environment: Mapping[str, str], name: str, launcher: Launcher) -> int:
    """Return a variable as a whole number of at least zero."""
    text = environment.get(name)
    if text is None or not text.isdecimal():
        raise WorldError(
            f"{name}: must be a whole number, is {text!r}. Taking it for rank 0 would start a second leader; set it as "
            f"{launcher.name} does, or unset all of {launcher.rank}, {launcher.world_size} and {launcher.local_rank} "
            "for one process."
        )
    return int(text)


def address_of_step(environment: Mapping[str, str]) -> str | None:
    """Return where the tasks of a Slurm step meet: on its first node, where rank 0 is, at a port of the job's own.

    MASTER_ADDR and MASTER_PORT win, each by itself. None where nothing tells.

    Raises:
        WorldError: the list of nodes cannot be read.
    """
    host, port = environment.get("MASTER_ADDR"), environment.get("MASTER_PORT")
    for name in ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"):
        if not host and name in environment:
            host = first_host(environment[name], name=name)
    job, step = environment.get("SLURM_JOB_ID", ""), environment.get("SLURM_STEP_ID", "")
    if not port and job.isdecimal():
        number = int(job) + 997 * int(step if step.isdecimal() else 0)  # steps of a job may run side by side
        port = str(FIRST_PORT + number % PORTS)
    return f"{host}:{port}" if host and port else None


FIRST_PORT, PORTS = 15_000, 10_000
"""Ports of Slurm steps: above services, below those that Linux gives to outgoing connections."""


def first_host(nodes: str, *, name: str) -> str:
    """Return the first of a list such as `gpu[007-009,12],login1`: `gpu007`.

    Args:
        nodes: as Slurm writes it.
        name: of the variable, for the error.

    Raises:
        WorldError: it is empty, or its brackets do not close.
    """
    first = re.match(r"(?:[^\[\],]|\[[^\[\]]+\])+", nodes)
    if first is None or nodes[first.end() : first.end() + 1] not in ("", ","):
        raise WorldError(
            f"{name}: {nodes!r} is no list of nodes as Slurm writes it, such as gpu[007-009]. Set MASTER_ADDR to the "
            "node of rank 0, or start with torchrun."
        )
    return re.sub(r"\[([^-,\]]+)[^\]]*\]", r"\1", first.group())


def read_local_world_size(environment: Mapping[str, str]) -> int | None:
    """Return the processes that torchrun or `--nproc` starts on this machine, None where neither did."""
    text = environment.get("LOCAL_WORLD_SIZE", "")
    return int(text) if text.isdecimal() else None


def need_address(world: World, environment: Mapping[str, str]) -> None:
    """Refuse to wait for other processes without a place to meet them.

    Raises:
        WorldError: there are several processes, and no variable says where they meet.
    """
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not environment.get(name)]
    if world.world_size > 1 and world.address is None and missing:
        verb = "are" if len(missing) > 1 else "is"
        raise WorldError(
            f"{' and '.join(missing)}: {verb} not set, and without them {world.world_size} processes cannot find each "
            "other. Start them with torchrun, or with srun, which tells its nodes (SLURM_STEP_NODELIST) and job "
            "(SLURM_JOB_ID), or set MASTER_ADDR to the node of rank 0 and MASTER_PORT to a free port there."
        )
