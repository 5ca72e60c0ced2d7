"""Protocols of the position of a process in a run, such as `mb_launch.World`."""

from typing import Protocol


class RankInfo(Protocol):
    """Position of this process in the run."""

    @property
    def rank(self) -> int:
        """Rank of this process."""

    @property
    def world_size(self) -> int:
        """Number of ranks."""

    @property
    def attempt(self) -> str:
        """Name of this start of the run, identical on all ranks and different after each restart."""

    @property
    def is_logging_rank(self) -> bool:
        """Whether this rank logs what is identical on all ranks."""
