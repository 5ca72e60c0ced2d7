"""The first cause among the failures of several ranks. The standard library only."""

import signal
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from mb_launch.ranks.failures import FAILED, STDERR_HEADING, Failure

FORWARDED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals that a launcher passes on to its ranks; one of them ends a rank on request, not by a fault."""

RERUN_CODES = frozenset({16, 17})
"""Exit codes by which Megatron's rerun machine requests another start of the job."""


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
            number = signal.Signals(-process.exitcode)
            reason = (
                ": a file that it maps was cut short, or shared memory is full"
                if number == signal.SIGBUS
                else ""
            )
            return _without_record(rank, f"was killed by {number.name}{reason}", logs)
    exits = {rank: process.exitcode for rank, process in ended.items() if rank not in ranks_with_record}
    for rank, code in exits.items():
        if code > 0 and recorded:
            return _without_record(rank, f"ended with exit code {code}, without an error", logs)
    if recorded:
        first = min(recorded, key=lambda failure: failure.time)
        return replace(first, text=f"rank {first.rank}: {first.text}")
    rank, code = next(iter(exits.items()))
    if code < 0:
        name = signal.Signals(-code).name
        what = f"was ended by {name}, which its launcher forwarded: it has no handler for it, or was still starting"
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


def stderr_tail(logs: Path | None, rank: int, *, lines: int = 20) -> str:
    """Return a heading and the end of a rank's stderr; "" if it was not kept or is empty."""
    for file in logs.glob(f"*/attempt_*/{rank}/stderr.log") if logs else ():
        end = file.read_text(errors="replace").splitlines()[-lines:]
        if end:
            return STDERR_HEADING + "\n".join(end)
    return ""
