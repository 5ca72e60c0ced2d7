"""Failures of ranks, reported to the launcher or printed once for all ranks. The standard library only.

A rank that fails makes its partners fail in their next collective. The launcher therefore reads the failures of all
ranks and shows the earliest one; under torchrun or srun, which know nothing of these files, one rank prints.
"""

import fcntl
import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from mb_launch.world import World, WorldError, read_world

ERROR_FOLDER = "MB_ERROR_FOLDER"
"""Environment variable: folder to which the ranks that `launch_local` started write their failures."""

TORCHRUN_ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
"""Environment variable of torchrun: a file of this rank, two folders below one that all local ranks share."""

FORWARDED_MARK = "forwarded"
"""Name of the file in that folder that exists once the launcher has forwarded a signal."""

FAILED = 1
"""Exit code of a rank that failed for a reason without a code of its own."""

STDERR_HEADING = "; end of its stderr:\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Failure of one rank."""

    rank: int
    time: float
    """Seconds since the epoch."""
    text: str
    """A message, or a traceback; possibly followed by the end of the rank's stderr."""
    exit_code: int

    @property
    def message(self) -> str:
        """The text without the end of stderr."""
        return self.text.partition(STDERR_HEADING)[0]


def report_failure(text: str, *, exit_code: int, environment: Mapping[str, str]) -> int:
    """Record a failure of this rank for the launcher, or print it once for all ranks; return the exit code.

    Args:
        text: Message or traceback.
        exit_code: Exit code with which this rank is about to end.
        environment: Variables of this process.
    """
    try:
        world = read_world(environment)
    except WorldError:
        world = World()
    failure = Failure(rank=world.rank, time=time.time(), text=text, exit_code=exit_code)
    if not record_failure(failure, environment):
        print_once(text, environment=environment, is_logging_rank=world.is_logging_rank)
    return exit_code


def record_failure(failure: Failure, environment: Mapping[str, str]) -> bool:
    """Write a failure to the folder that the launcher reads; return False if no launcher reads one."""
    folder = environment.get(ERROR_FOLDER)
    if folder is None:
        return False
    failure_file(Path(folder), failure.rank).write_text(json.dumps(asdict(failure)))
    return True


def failure_file(folder: Path, rank: int) -> Path:
    """Return the file with the recorded failure of a rank."""
    return folder / f"failure-{rank}.json"


def stop_was_requested(environment: Mapping[str, str]) -> bool:
    """Return whether a signal that this rank received requests a stop; False if its launcher ends a failed launch.

    A process that `launch_local` has not started cannot know, and assumes a request.
    """
    folder = environment.get(ERROR_FOLDER)
    return folder is None or (Path(folder) / FORWARDED_MARK).exists()


def read_failures(folder: Path) -> list[Failure]:
    """Return all recorded failures."""
    return [Failure(**json.loads(file.read_text())) for file in folder.glob("failure-*.json")]


def print_once(text: str, *, environment: Mapping[str, str], is_logging_rank: bool) -> None:
    """Print an error of this rank to stderr, unless another rank of the same start has printed one.

    torchrun terminates all ranks when one has failed, so that waiting for a certain rank could lose the message: the
    first rank that fails on each machine prints, and the others return once it has. Elsewhere (srun) the logging rank
    prints.
    """
    own_file = environment.get(TORCHRUN_ERROR_FILE)
    if own_file and (shared := Path(own_file).parent.parent).is_dir():
        with (shared / "reported").open("a+") as reported:
            # The lock is held while printing: a rank that returned earlier could end the process that prints.
            fcntl.flock(reported, fcntl.LOCK_EX)
            if reported.seek(0, os.SEEK_END) == 0:
                print(f"error: {text}", file=sys.stderr, flush=True)
                print("reported", file=reported)
    elif is_logging_rank:
        print(f"error: {text}", file=sys.stderr)
