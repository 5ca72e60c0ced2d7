"""Share of one process in an export. Standard library only."""

from dataclasses import dataclass

SHARD_BYTES = 2 * 2**30
"""Maximum size of a file, unless one tensor is larger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportPart:
    """The files `index`, `index + count`, ..., counted from 0; all files by default."""

    index: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            ValueError: there is no such part.
        """
        if not 0 <= self.index < self.count:
            raise ValueError(
                f"part: {self.index}/{self.count} does not exist, because N processes have the parts 0/N to (N - 1)/N. "
                "Use one of them."
            )


WHOLE = ExportPart()
