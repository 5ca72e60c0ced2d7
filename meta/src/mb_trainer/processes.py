"""The processes of a run: who am I, on which device, and the process groups between us."""

from collections.abc import Mapping
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

    @property
    def is_voice(self) -> bool:
        """Whether this rank speaks for all: the last one, which holds the loss under pipeline parallelism."""
        return self.rank == self.world_size - 1


def is_launched(environment: Mapping[str, str]) -> bool:
    """Say whether torchrun or srun started this process."""
    return any(rank in environment for rank, _, _ in SOURCES)


SOURCES = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
)
"""Launchers' variables for rank, world size and local rank: torchrun first, then srun."""


def read_world(environment: Mapping[str, str]) -> World:
    """Read rank, world size and local rank as torchrun or srun set them; one process where neither did.

    Raises:
        WorldError: a variable is there but is no number, or the rank lies outside the world.
    """
    for rank, world_size, local_rank in SOURCES:
        if rank in environment or (rank == "RANK" and world_size in environment):
            world = World(
                rank=read_number(environment, rank),
                world_size=read_number(environment, world_size),
                local_rank=read_number(environment, local_rank),
                attempt=environment.get("TORCHELASTIC_RESTART_COUNT", "0"),
            )
            if not 0 <= world.rank < world.world_size:
                raise WorldError(
                    f"{rank}={world.rank}: lies outside the world of {world_size}={world.world_size} processes. "
                    "Start every process with the launcher that counts them (torchrun or srun)."
                )
            return world
    return World()


def read_number(environment: Mapping[str, str], name: str) -> int:
    """Return a variable as a whole number of at least zero."""
    text = environment.get(name)
    if text is None or not text.isdecimal():
        raise WorldError(
            f"{name}: must be a whole number, is {text!r}. Taking it for rank 0 would start a second leader; "
            "set it as torchrun or srun do, or unset all of RANK, WORLD_SIZE and LOCAL_RANK for one process."
        )
    return int(text)
