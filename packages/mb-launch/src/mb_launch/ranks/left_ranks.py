"""Ranks of a launch that end without leaving, such as by `os._exit`. The standard library only.

A launcher sees a rank that ends with exit code 0 as one that has done its work, while the others wait for it. A rank
therefore marks that it is at work (`at_work`), and a thread of the launcher watches the processes that do. Torch
elastic may reap a rank that ended with 0 before the thread looks, and keeps no exit code of it: a process that is gone
while its mark exists has ended at work all the same.

Torch elastic waits for the result of each forked rank, for ever if that ended without one. The thread therefore ends
ranks that wait for such a rank, and interrupts the launcher if none is left.
"""

import _thread
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from mb_launch.ranks.failures import ERROR_FOLDER, FAILED, Failure
from mb_launch.world import read_world

POLL_SECONDS = 0.05
GRACE_SECONDS = 5.0
"""Time in which the launcher, which sees an exit code other than 0, ends the other ranks, and itself."""
INTERRUPTION = signal.SIGQUIT


@contextmanager
def at_work(environment: Mapping[str, str]) -> Iterator[None]:
    """Let the launcher know that this rank works until the end of the block, however that ends.

    Without effect in a process that `launch_local` has not started.
    """
    folder = environment.get(ERROR_FOLDER)
    if folder is None:
        yield
        return
    mark = Path(folder) / f"at-work-{read_world(environment).rank}"
    mark.write_text(str(os.getpid()))
    try:
        yield
    finally:
        mark.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _End:
    """End of a rank that was at work."""

    time: float
    code: int | None
    """Exit code, or minus the signal that killed it; None if the launcher has reaped it before it was seen."""
    survivors: frozenset[int]
    """Ranks that still ran afterwards."""


class LeftRanks:
    """Watch the ranks at work while the block runs; if one has ended, end the others, which would wait for it.

    If all ranks have ended and the block has not, its thread, the main one, gets `INTERRUPTION`.

    Args:
        folder: Folder with the marks of the ranks.
        ranks: Number of ranks; None: the block is not interrupted.
    """

    def __init__(self, folder: Path, *, ranks: int | None = None) -> None:
        self._folder = folder
        self._ranks = ranks
        self.interrupted = False
        """Whether the block got `INTERRUPTION`."""
        self._processes: dict[int, int] = {}
        self._ended: dict[int, _End] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="left ranks", daemon=True)

    def failure(self, exit_codes: Mapping[int, int]) -> Failure | None:
        """Return the failure of the first rank that has ended with an exit code while it was at work.

        Call it at the end of the launch, after the block.

        Args:
            exit_codes: Ranks that the launcher knows to have failed. It may have ended others afterwards, but none that
                ended while all of these still ran.
        """
        self._look()
        for rank, end in sorted(self._ended.items(), key=lambda each: each[1].time):
            code = end.code
            if code is None and rank in exit_codes:
                code = exit_codes[rank]
            elif code is None and end.survivors.issuperset(exit_codes):
                code = 0
            if code is not None and code >= 0:
                text = (
                    f"rank {rank} ended with exit code {code} in the middle of its work, without an error, as os._exit "
                    "does, or a library that exits"
                )
                return Failure(rank=rank, time=end.time, text=text, exit_code=FAILED)
        return None

    def __enter__(self) -> "LeftRanks":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._thread.join()

    def _watch(self) -> None:
        all_ended: float | None = None
        while not self._stopped.wait(POLL_SECONDS):
            self._look()
            running = [process for process in self._processes.values() if is_running(process)]
            if self._ended and self._is_overdue():
                for process in running:
                    with suppress(ProcessLookupError):
                        os.kill(process, signal.SIGKILL)
            if running or len(self._processes) != self._ranks:
                all_ended = None
            elif all_ended is None:
                all_ended = time.monotonic()
            elif time.monotonic() - all_ended > GRACE_SECONDS:
                self.interrupted = True
                _thread.interrupt_main(INTERRUPTION)
                return

    def _look(self) -> None:
        """Note the ranks that have ended at work."""
        at_work = self._at_work()
        self._processes |= at_work
        codes = {rank: exit_code(process) for rank, process in at_work.items() if rank not in self._ended}
        ended = {rank for rank, code in codes.items() if code is not None or is_gone(at_work[rank])}
        if ended:
            still_marked = self._at_work()  # a rank that leaves removes its mark before it ends
            survivors = frozenset(rank for rank, process in self._processes.items() if is_running(process))
            for rank in ended & still_marked.keys():
                self._ended[rank] = _End(time=time.time(), code=codes[rank], survivors=survivors)

    def _is_overdue(self) -> bool:
        return time.time() - min(end.time for end in self._ended.values()) > GRACE_SECONDS

    def _at_work(self) -> dict[int, int]:
        """Return the processes of the ranks that are marked as working."""
        processes: dict[int, int] = {}
        for mark in self._folder.glob("at-work-*"):
            with suppress(OSError, ValueError):  # it is written or removed at the moment
                processes[int(mark.name.rpartition("-")[2])] = int(mark.read_text())
        return processes


def exit_code(process: int) -> int | None:
    """Return the exit code of a child process, or minus the signal that killed it, without reaping it.

    None while it runs, and if it has been reaped.
    """
    try:
        ended = os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    if ended is None:
        return None
    return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


def is_gone(process: int) -> bool:
    """Return whether a process has been reaped."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    return False


def is_running(process: int) -> bool:
    """Return whether a process has not ended."""
    return exit_code(process) is None and not is_gone(process)
