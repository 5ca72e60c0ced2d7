"""Failures of ranks: reported to the launcher, which finds the first cause, or printed once. Standard library only.

A rank that fails makes its partners fail in their next collective. The launcher therefore reads the failures of all
ranks and shows the first cause; under torchrun or srun, which know nothing of these files, one rank prints.
"""

import fcntl
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Protocol

from mb_launch.world import World, WorldError, read_world
from mb_schema.exit_codes import signal_name
from mb_schema.files import write_atomically

ERROR_FOLDER = "MB_ERROR_FOLDER"
"""Environment variable: folder to which the ranks that `launch_local` started write their failures."""

TORCHRUN_ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
"""Environment variable of torchrun: a file of this rank, two folders below one that all local ranks share."""

FORWARDED_MARK = "forwarded"
"""Name of the file in that folder that exists once the launcher has forwarded a signal."""

_TIME = "failed_at"
"""Name of the attribute of an exception with the time, in seconds since the epoch, at which it was raised."""

FAILED = 1
"""Exit code of a rank that failed for a reason without a code of its own."""

STDERR_HEADING = "; end of its stderr:\n"
STDERR_LINES = 20


FORWARDED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals that a launcher passes on to its ranks; one of them ends a rank on request, not by a fault."""

RERUN_CODES = frozenset({16, 17})
"""Exit codes by which Megatron's rerun machine requests another start of the job."""


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


@contextmanager
def timed_failure() -> Iterator[None]:
    """Note when an exception leaves the block, for `report_failure` after the process group is closed.

    The partners of a rank fail as soon as it closes its process group, and may report that before it reports the cause.
    """
    try:
        yield
    except BaseException as error:
        if not hasattr(error, _TIME):
            setattr(error, _TIME, time.time())
        raise


def report_failure(text: str, *, exit_code: int, environment: Mapping[str, str]) -> int:
    """Record a failure of this rank for the launcher, or print it once for all ranks; return the exit code.

    Its time is that of the exception that is being handled, if that has left a `timed_failure`, else the present one.

    Args:
        text: Message or traceback.
        exit_code: Exit code with which this rank is about to end.
        environment: Variables of this process.
    """
    try:
        world = read_world(environment)
    except WorldError:
        world = World()
    failed_at = getattr(sys.exc_info()[1], _TIME, None) or time.time()
    failure = Failure(rank=world.rank, time=failed_at, text=text, exit_code=exit_code)
    if not record_failure(failure, environment):
        print_once(text, environment=environment, is_logging_rank=world.is_logging_rank)
    return exit_code


def record_failure(failure: Failure, environment: Mapping[str, str]) -> bool:
    """Write a failure to the folder that the launcher reads; return False if no launcher reads one."""
    folder = environment.get(ERROR_FOLDER)
    if folder is None:
        return False
    # the launcher may end this rank while it writes
    write_atomically(failure_file(Path(folder), failure.rank), json.dumps(asdict(failure)))
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
    return [Failure(**json.loads(file.read_text(encoding="utf-8"))) for file in folder.glob("failure-*.json")]


class EndedProcess(Protocol):
    """A process that ended; torch's `ProcessFailure` fits."""

    @property
    def exitcode(self) -> int:
        """Exit code, or minus the number of the signal that killed the process."""


def first_failure(
    ended: Mapping[int, EndedProcess],
    recorded: Sequence[Failure],
    *,
    logs: Path | None = None,
    left: Failure | None = None,
) -> Failure:
    """Return the first cause: a rank that ended without an error, or was killed, else the earliest recorded failure.

    The other ranks fail as a consequence, because their partner is gone. An exit code without a record precedes a
    record: an error is recorded, and a rank that exits without one does so on its own.

    Args:
        ended: Rank to its process, of those that did not end with 0.
        recorded: As `read_failures` returns them.
        logs: Folder in which torch elastic keeps the stderr of ranks; None: there is none.
        left: Of a rank that ended in the middle of its work, as `LeftRanks` found it.
    """
    ranks_with_record = {failure.rank for failure in recorded}
    if left is not None and left.rank not in ranks_with_record:
        return replace(left, text=f"{left.text}{stderr_tail(logs, left.rank)}")
    for rank, process in ended.items():
        if process.exitcode < 0 and -process.exitcode not in FORWARDED_SIGNALS:
            number = -process.exitcode
            reason = (
                ": a file that it maps was cut short, or shared memory is full"
                if number == signal.SIGBUS
                else ""
            )
            return _without_record(rank, f"was killed by {signal_name(number)}{reason}", logs)
    exits = {rank: process.exitcode for rank, process in ended.items() if rank not in ranks_with_record}
    for rank, code in exits.items():
        if code > 0 and recorded:
            return _without_record(rank, f"ended with exit code {code}, without an error", logs)
    if recorded:
        first = min(recorded, key=lambda failure: failure.time)
        return replace(first, text=f"rank {first.rank}: {first.text}")
    rank, code = next(iter(exits.items()))
    if code < 0:
        what = (
            f"was ended by {signal_name(-code)}, which its launcher forwarded: it has no handler for it, or was still "
            "starting"
        )
        return _without_record(rank, what, logs)
    return _without_record(rank, f"ended with exit code {code}", logs)


def _without_record(rank: int, what: str, logs: Path | None) -> Failure:
    return Failure(rank=rank, time=0.0, text=f"rank {rank} {what}{stderr_tail(logs, rank)}", exit_code=FAILED)


def common_rerun_code(exit_codes: Sequence[int]) -> int | None:
    """Return the exit code of the rerun machine, 16 or 17, if all ranks ended with the same one; else None.

    All ranks exit with it, but the launcher terminates those that do so a moment later: their codes do not count.
    """
    others = {code for code in exit_codes if -code not in FORWARDED_SIGNALS}
    return others.pop() if len(others) == 1 and others <= RERUN_CODES else None


def stderr_tail(logs: Path | None, rank: int) -> str:
    """Return a heading and the end of a rank's stderr; "" if it was not kept or is empty."""
    for file in logs.glob(f"*/attempt_*/{rank}/stderr.log") if logs else ():
        end = file.read_text(errors="replace", encoding="utf-8").splitlines()[-STDERR_LINES:]
        if end:
            return STDERR_HEADING + "\n".join(end)
    return ""


def print_once(text: str, *, environment: Mapping[str, str], is_logging_rank: bool) -> None:
    """Print an error of this rank to stderr, unless another rank of the same start has printed one.

    torchrun terminates all ranks when one has failed, so that waiting for a certain rank could lose the message: the
    first rank that fails on each machine prints, and the others return once it has. Elsewhere (srun) the logging rank
    prints.
    """
    own_file = environment.get(TORCHRUN_ERROR_FILE)
    if own_file and (shared := Path(own_file).parent.parent).is_dir():
        with (shared / "reported").open("a+", encoding="utf-8") as reported:
            # The lock is held while printing: a rank that returned earlier could end the process that prints.
            fcntl.flock(reported, fcntl.LOCK_EX)
            if reported.seek(0, os.SEEK_END) == 0:
                print(f"error: {text}", file=sys.stderr, flush=True)
                print("reported", file=reported)
    elif is_logging_rank:
        print(f"error: {text}", file=sys.stderr)
