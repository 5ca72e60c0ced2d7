"""The first cause among the failures of several ranks. The standard library only."""

import signal
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from mb_launch.failures import FAILED, STDERR_HEADING, Failure

FORWARDED_SIGNALS = (signal.SIGTERM, signal.SIGINT)
"""Signals that a launcher passes on to its ranks; one of them ends a rank on request, not by a fault."""

RERUN_CODES = frozenset({16, 17})
"""Exit codes by which Megatron's rerun machine requests another start of the job."""


class EndedProcess(Protocol):
    """A process that ended; torch's `ProcessFailure` fits."""

    @property
    def exitcode(self) -> int:
        """Exit code, or minus the number of the signal that killed the process."""


def first_failure(
    ended: Mapping[int, EndedProcess], recorded: Sequence[Failure], *, logs: Path | None = None
) -> Failure:
    """Return the first cause: a rank that was killed, else the earliest recorded failure, else an exit code.

    The other ranks fail as a consequence, because their partner is gone.

    Args:
        ended: Rank to its process, of those that did not end with 0.
        recorded: As `read_failures` returns them.
        logs: Folder in which torch elastic keeps the stderr of ranks; None: there is none.
    """
    for rank, process in ended.items():
        if process.exitcode < 0 and -process.exitcode not in FORWARDED_SIGNALS:
            name = signal.Signals(-process.exitcode).name
            text = f"rank {rank} was killed by {name}{stderr_tail(logs, rank)}"
            return Failure(rank=rank, time=0.0, text=text, exit_code=FAILED)
    if recorded:
        first = min(recorded, key=lambda failure: failure.time)
        return replace(first, text=f"rank {first.rank}: {first.text}")
    rank, process = next(iter(ended.items()))
    text = f"rank {rank} ended with exit code {process.exitcode}{stderr_tail(logs, rank)}"
    return Failure(rank=rank, time=0.0, text=text, exit_code=FAILED)


def common_rerun_code(exit_codes: Sequence[int]) -> int | None:
    """Return the exit code of the rerun machine, 16 or 17, if all ranks ended with the same one; else None.

    All ranks exit with it, but the launcher terminates those that do so a moment later: their codes do not count.
    """
    others = {code for code in exit_codes if -code not in FORWARDED_SIGNALS}
    return others.pop() if len(others) == 1 and others <= RERUN_CODES else None


def stderr_tail(logs: Path | None, rank: int, *, lines: int = 20) -> str:
    """Return a heading and the end of a rank's stderr; "" if it was not kept or is empty."""
    for file in logs.glob(f"*/attempt_*/{rank}/stderr.log") if logs else ():
        end = file.read_text(errors="replace").splitlines()[-lines:]
        if end:
            return STDERR_HEADING + "\n".join(end)
    return ""
