"""What a process of a launched run leaves behind when it fails, so that the launcher can tell the cause. No torch."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

ERROR_FOLDER = "MB_ERROR_FOLDER"
"""Environment variable: where processes started by `mb pretrain --nproc` put their failures."""

FAILED = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One process that could not go on."""

    rank: int
    time: float
    """Seconds since the epoch."""
    text: str
    """A message, or a traceback."""
    exit_code: int


def leave_failure(failure: Failure, environment: Mapping[str, str]) -> bool:
    """Write a failure where the launcher looks for it; False where no launcher does."""
    folder = environment.get(ERROR_FOLDER)
    if folder is None:
        return False
    (Path(folder) / f"failure-{failure.rank}.json").write_text(json.dumps(asdict(failure)))
    return True


def read_failures(folder: Path) -> list[Failure]:
    """Return every failure that was left."""
    return [Failure(**json.loads(file.read_text())) for file in folder.glob("failure-*.json")]
