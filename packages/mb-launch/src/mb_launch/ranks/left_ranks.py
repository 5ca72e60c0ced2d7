"""Ranks of a launch that end without leaving, such as by `os._exit`. The standard library only.

A launcher sees a rank that ends with exit code 0 as one that has done its work, while the others wait for it. A rank
therefore marks that it has started, is at work (`at_work`) and has finished, each by a file with its process number,
and a thread of the launcher watches these processes. Torch elastic may reap a rank that ended with 0 before the thread
looks, and keeps no exit code of it: a process that is gone before its work is finished has ended too early all the
same.

Torch elastic waits for the result of each forked rank, for ever if that ended without one, and each forked rank waits
until elastic has all results. The thread therefore ends ranks that wait for one that ended too early, and interrupts
the launcher if none is left but those that have nothing more to do.
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

from mb_launch.ranks.failures import ERROR_FOLDER, FAILED, Failure, failure_file
from mb_launch.world import read_world

POLL_SECONDS = 0.05
GRACE_SECONDS = 5.0
"""Time in which the launcher, which sees an exit code other than 0, ends the other ranks, and itself."""
INTERRUPTION = signal.SIGQUIT

STARTED, AT_WORK, FINISHED, RESULT_SENT = "started", "at-work", "finished", "result-sent"
"""Marks of a rank, in order: files such as `started-0`. Forked ranks have no first one, interpreters no last one."""


@contextmanager
def at_work(environment: Mapping[str, str]) -> Iterator[None]:
    """Let the launcher know that this rank works until the end of the block, however that ends.

    Without effect in a process that `launch_local` has not started.
    """
    folder = environment.get(ERROR_FOLDER)
    if folder is None:
        yield
        return
    rank = read_world(environment).rank
    mark = Path(folder) / f"{AT_WORK}-{rank}"
    if mark.exists():  # the rank is at work already, in an outer block
        yield
        return
    process = os.getpid()
    mark.write_text(str(process), encoding="utf-8")
    try:
        yield
    finally:
        if os.getpid() == process:  # and not a fork of this rank
            _advance(mark, FINISHED)


def mark_result_sent(environment: Mapping[str, str]) -> None:
    """Let the launcher know that nothing is left to do for this rank, whose work is finished."""
    if folder := environment.get(ERROR_FOLDER):
        _advance(Path(folder) / f"{FINISHED}-{read_world(environment).rank}", RESULT_SENT)


def _advance(mark: Path, state: str) -> None:
    with suppress(FileNotFoundError):  # the launcher has ended
        mark.rename(mark.with_name(f"{state}-{mark.name.rpartition('-')[2]}"))


@dataclass(frozen=True, slots=True, kw_only=True)
class _End:
    """End of a rank whose work was not finished."""

    time: float
    """Seconds since the epoch, to be compared with the failures that ranks record."""
    seen: float
    """The same moment on the monotonic clock."""
    code: int | None
    """Exit code, or minus the signal that killed it; None if the launcher has reaped it before it was seen."""
    survivors: frozenset[int]
    """Ranks that still ran afterwards."""
    state: str
    """`STARTED` or `AT_WORK`."""


class LeftRanks:
    """Watch the ranks while the block runs; if one has ended before its work, end the others, which would wait for it.

    If a rank has ended, each other one has ended or has sent its result, and the block has not ended, then its thread,
    the main one, gets `INTERRUPTION`.

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
        """Return the failure of the first rank that has ended with an exit code before its work was finished.

        Call it at the end of the launch, after the block.

        Args:
            exit_codes: Ranks that the launcher knows to have failed. It may have ended others afterwards, but none that
                ended while all of these still ran.
        """
        self._look()
        for rank, end in sorted(self._ended.items(), key=lambda each: each[1].seen):
            code = end.code
            if code is None and rank in exit_codes:
                code = exit_codes[rank]
            elif code is None and end.survivors.issuperset(exit_codes):
                code = 0
            if code is not None and code >= 0:
                when = "in the middle of its work" if end.state == AT_WORK else "before its work began"
                text = (
                    f"rank {rank} ended with exit code {code} {when}, without an error, as os._exit does, or a library "
                    "that exits"
                )
                return Failure(rank=rank, time=end.time, text=text, exit_code=FAILED)
        return None

    def finished_before(self, moment: float) -> list[int]:
        """Return the ranks that had finished their work at a time, in seconds since the epoch."""
        marks = [*self._folder.glob(f"{FINISHED}-*"), *self._folder.glob(f"{RESULT_SENT}-*")]
        return sorted(_rank_of(mark) for mark in marks if mark.stat().st_ctime < moment)

    def __enter__(self) -> "LeftRanks":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._thread.join()

    def _watch(self) -> None:
        """Poll the ranks until the launch ends, in a thread.

        Kill the ranks that wait for one that ended too early. Interrupt the launcher if all ranks that are left
        have sent their results, so that they only wait for one another.
        """
        all_ended: float | None = None
        while not self._stopped.wait(POLL_SECONDS):
            self._look()
            running = {rank for rank, process in self._processes.items() if is_running(process)}
            if self._ended and self._is_overdue():
                for rank in running:
                    with suppress(ProcessLookupError):
                        os.kill(self._processes[rank], signal.SIGKILL)
            waiting = running & self._marked(RESULT_SENT).keys()
            if (
                running != waiting
                or len(waiting) == len(self._processes)
                or len(self._processes) != self._ranks
            ):
                all_ended = None
            elif all_ended is None:
                all_ended = time.monotonic()
            elif time.monotonic() - all_ended > GRACE_SECONDS:
                self.interrupted = True
                _thread.interrupt_main(INTERRUPTION)
                return

    def _look(self) -> None:
        """Note the ranks that have ended before their work was finished."""
        unfinished = self._unfinished()
        self._processes |= {rank: process for rank, (_, process) in unfinished.items()}
        codes = {
            rank: exit_code(process) for rank, (_, process) in unfinished.items() if rank not in self._ended
        }
        ended = {rank for rank, code in codes.items() if code is not None or is_gone(unfinished[rank][1])}
        if ended:
            still_unfinished = self._unfinished()  # a rank that leaves changes its mark before it ends
            survivors = frozenset(rank for rank, process in self._processes.items() if is_running(process))
            for rank in ended & still_unfinished.keys():
                self._ended[rank] = _End(
                    time=time.time(),
                    seen=time.monotonic(),
                    code=codes[rank],
                    survivors=survivors,
                    state=still_unfinished[rank][0],
                )

    def _is_overdue(self) -> bool:
        return time.monotonic() - min(end.seen for end in self._ended.values()) > GRACE_SECONDS

    def _unfinished(self) -> dict[int, tuple[str, int]]:
        """Return state and process of each rank that is at work, or is yet to begin while another one has begun.

        A program whose ranks never mark their work has none.
        """
        started, working, finished = map(self._marked, (STARTED, AT_WORK, FINISHED))
        unfinished = {rank: (AT_WORK, process) for rank, process in working.items()}
        if working:
            idle = started.keys() - working.keys() - finished.keys()
            idle -= {rank for rank in idle if failure_file(self._folder, rank).exists()}
            unfinished |= {rank: (STARTED, started[rank]) for rank in idle}
        return unfinished

    def _marked(self, state: str) -> dict[int, int]:
        """Return the processes of the ranks that have a mark."""
        processes: dict[int, int] = {}
        for mark in self._folder.glob(f"{state}-*"):
            with suppress(OSError, ValueError):  # it is written or changed at the moment
                processes[_rank_of(mark)] = int(mark.read_text(encoding="utf-8"))
        return processes


def _rank_of(mark: Path) -> int:
    return int(mark.name.rpartition("-")[2])


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
