"""What a process of a launched run leaves behind when it fails, so that the launcher can tell the cause. No torch."""

import fcntl
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

ERROR_FOLDER = "MB_ERROR_FOLDER"
"""Environment variable: where processes started by `mb pretrain --nproc` put their failures."""

TORCHRUN_ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
"""Environment variable of torchrun: a file of this process, two folders below one of all its local processes."""

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


def print_once(text: str, *, environment: Mapping[str, str], is_voice: bool) -> None:
    """Print an error of this process to stderr, unless another process of the same start speaks for it.

    torchrun ends all processes when one has failed, so waiting for a certain rank could lose the message: the first
    that fails on each machine prints, and the others return once it has. Elsewhere (srun) the voice prints.
    """
    own_file = environment.get(TORCHRUN_ERROR_FILE)
    if own_file and (shared := Path(own_file).parent.parent).is_dir():
        with (shared / "told").open("a+") as told:
            fcntl.flock(told, fcntl.LOCK_EX)
            if told.seek(0, os.SEEK_END) == 0:
                print(f"error: {text}", file=sys.stderr, flush=True)
                print("told", file=told)
    elif is_voice:
        print(f"error: {text}", file=sys.stderr)
