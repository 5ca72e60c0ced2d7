"""Ranks' processes in the launcher: start, communication, outcomes, end. A rank runs `mb_host.ranks.rank.main`."""

import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import DupFd
from types import ModuleType

from mb_host.ranks.errors import rank_failed_error, rank_timeout_error
from mb_host.ranks.messages import RankOutcome, RankSpec, RankTask

_DEATH_SECONDS = 5.0
"""Time to wait for the end of a process whose connection is closed, or that received a fatal signal."""
# After the first failure, other ranks may fail within this time: their errors are often more informative.
_GRACE_SECONDS = 2.0
_OUTPUT, _ERRORS = 1, 2


class InheritedDescriptor:
    """File descriptor that a child process receives as an int when this object is passed to it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __reduce__(self) -> tuple[object, ...]:
        return _received, (DupFd(self._descriptor),)


def _received(duplicate: "DupFd") -> int:  # type: ignore[valid-type]
    return duplicate.detach()  # type: ignore[attr-defined,no-any-return]


class RankProcess:
    """Rank in another process, which leads a session of the operating system.

    The constructor starts the process. It does not import the launcher's main module, so the launcher may be a
    prompt or an unguarded script.

    `connection` carries tasks and outcomes. faulthandler writes the stacks of the rank's threads to a file on a fatal
    signal. The rank ends if the launcher dies.
    """

    def __init__(self, spec: RankSpec) -> None:
        self.rank = spec.rank
        self.connection: Connection[RankTask | None, RankOutcome]
        self.connection, theirs = Pipe()
        self._dump = tempfile.TemporaryFile()  # noqa: SIM115 - closed by end()
        descriptors = [InheritedDescriptor(end) for end in (_OUTPUT, _ERRORS, self._dump.fileno())]
        context = get_context("forkserver") if spec.start_method == "forkserver" else get_context("spawn")
        self._process = context.Process(target=_run_rank, args=(spec, theirs, *descriptors))
        try:
            # the fork server of Python 3.12 preloads modules without the launcher's path
            path = {"PYTHONPATH": os.pathsep.join(sys.path)}
            with _without_main_module(), _environment({**spec.environment, **path}):
                self._process.start()
        except BaseException:
            self.connection.close()
            self._dump.close()
            raise
        finally:
            theirs.close()
        self._pid = self._process.pid or 0
        self.sentinel = self._process.sentinel

    @property
    def exit_code(self) -> int | None:
        """Exit status, negative for a signal; None while the process is running."""
        return self._process.exitcode

    def send(self, task: RankTask) -> None:
        """Send one task. If the rank is dead, nothing is raised here: `outcome` and `exit_code` detect it."""
        with suppress(BrokenPipeError):
            self.connection.send(task)

    def outcome(self) -> RankOutcome | None:
        """Return the outcome of the task or of the process, or None if there is none yet.

        If the rank has closed its connection, waits some seconds for its end, so that its exit status is known.
        """
        # Read before the connection, because a last reply may arrive in between.
        has_exited = self.exit_code is not None
        try:
            if self.connection.poll():
                return self.connection.recv()
        except (EOFError, ConnectionResetError):  # a dying rank closes its end before it can be reaped
            self._process.join(_DEATH_SECONDS)
            has_exited = self.exit_code is not None
        if not has_exited:
            return None
        summary = _death(self.exit_code or 0)
        return RankOutcome(rank=self.rank, state="died", summary=summary, detail=self._stacks())

    def abort(self) -> None:
        """Send SIGABRT to the rank, which writes its stacks and dies; `aborted` then returns them."""
        if self.exit_code is None:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGABRT)

    def aborted(self) -> RankOutcome:
        """Return the outcome of a rank that was aborted. Waits some seconds for the end of the process."""
        self._process.join(_DEATH_SECONDS)
        summary = "was still running, and was aborted here:"
        stacks = self._stacks() or "(no stacks available)"
        return RankOutcome(rank=self.rank, state="running", summary=summary, detail=stacks)

    def _stacks(self) -> str:
        """Return the stacks that the rank wrote on a fatal signal, most recent call first; "" if there are none.

        Omits the thread that waits for the end of the launcher.
        """
        text = os.pread(self._dump.fileno(), 1 << 20, 0).decode(errors="replace")
        blocks = text.partition("\nExtension modules:")[0].strip().split("\n\n")
        return "\n\n".join(block for block in blocks if "in _die_with_launcher" not in block)

    def close_connection(self) -> None:
        """Send the last message and close the connection, so that the rank exits once its current task ends."""
        with suppress(OSError):  # the rank is dead
            self.connection.send(None)
        self.connection.close()

    def end(self, *, grace_seconds: float) -> None:
        """Wait up to `grace_seconds` for the rank to exit, kill it and its child processes, and close everything."""
        self._process.join(grace_seconds)
        self._process.kill()
        # The group keeps its ID until its last process has ended. Also kills a rank that outlives the fork server.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._pid, signal.SIGKILL)
        self._process.join()
        self._process.close()
        self.connection.close()
        self._dump.close()


def gather_outcomes(ranks: Sequence[RankProcess], *, what: str, timeout_seconds: float) -> list[RankOutcome]:
    """Return the outcomes of all ranks, by rank.

    `what` describes the run in messages. Ranks that do not reply in time are aborted.

    Raises:
        RankFailedError: A rank raised or died.
        RankTimeoutError: No rank failed, and a rank did not reply within `timeout_seconds`.
    """
    outcomes: list[RankOutcome] = []
    pending = list(ranks)
    deadline = time.monotonic() + timeout_seconds
    failed = False
    while pending and (left := deadline - time.monotonic()) > 0:
        wait([end for rank in pending for end in (rank.connection, rank.sentinel)], timeout=left)
        arrived = [outcome for rank in pending if (outcome := rank.outcome())]
        outcomes += arrived
        replied = {outcome.rank for outcome in arrived}
        pending = [rank for rank in pending if rank.rank not in replied]
        if not failed and any(outcome.state != "returned" for outcome in arrived):
            failed = True
            deadline = min(deadline, time.monotonic() + _GRACE_SECONDS)
    for rank in pending:
        rank.abort()
    outcomes += [rank.aborted() for rank in pending]
    if failed:
        raise rank_failed_error(outcomes, what=what)
    if pending:
        raise rank_timeout_error(outcomes, what=what, timeout_seconds=timeout_seconds)
    return sorted(outcomes, key=lambda outcome: outcome.rank)


def _run_rank(spec: RankSpec, connection: object, output: int, errors: int, dump: int) -> None:
    rank = import_module("mb_host.ranks.rank")  # it imports torch, which the launcher does not need
    rank.main(spec, connection, output=output, errors=errors, dump=dump)


def _death(exit_code: int) -> str:
    if exit_code < 0:
        named = -exit_code in {*signal.Signals}  # most real-time signals have no name
        return f"died of {signal.Signals(-exit_code).name if named else f'signal {-exit_code}'}"
    return f"ended its process with exit code {exit_code}"


@contextmanager
def _without_main_module() -> Iterator[None]:
    """Hide the main module from multiprocessing, which would execute it in each rank."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Replace the variables of this process, which a new interpreter inherits: imports of torch read them."""
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
