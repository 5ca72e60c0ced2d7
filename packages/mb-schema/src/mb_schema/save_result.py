"""Result of a save: what a checkpointer returns to a loop, and a loop passes to its callbacks."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveResult:
    """Result of a save that has ended, identical on all ranks except for `seconds`."""

    step: int
    """Step of the checkpoint."""
    non_persistent: bool
    """Whether the checkpoint is non-persistent: the next non-persistent one replaces it."""
    written: bool
    """Whether the checkpoint is complete; False: the save failed, and the run continues."""
    path: Path | None = None
    """Folder of the checkpoint; None: not known, or failed."""
    seconds: float | None = None
    """Time for which the save held the training loop on this rank; None: not known."""
    write_seconds: float | None = None
    """Time from the start of the save until the checkpoint was complete; None: not known, or failed."""
    total_bytes: int | None = None
    """Size of the files of all ranks; None: not known, or failed."""
    message: str | None = None
    """Description of the result, such as the reason of a failure; None: not known."""
