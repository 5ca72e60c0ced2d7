"""Ranks that are forked from a process which has already imported Megatron, so that its imports are paid for once.

Each run uses new ranks, with a gloo group on a TCP store, like those of `torchrun`; no state of a run remains for the
next one.
"""

import ctypes
import gc
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
import traceback
from contextlib import suppress
from importlib import import_module
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait

WANTED = ("tiny_run", "tiny_state", "numpy.random", "torch._dynamo", "torch.utils.serialization")
WANTED += ("megatron.core.models.mimo",)
"""Imported before the forks: the last four are what Megatron and torch import at the first use, for seconds."""
GRACE_SECONDS = 2.0
"""Time that the other ranks continue after one has failed."""
STARTUP_SECONDS = 60.0
"""What a run may take beyond its limit: the imports before the first one, and the forks."""


class RanksFailedError(RuntimeError):
    """A rank raised, died, or took too long."""


class ForkServer:
    """Process from which ranks are forked. Linux only."""

    def __init__(self):
        self._connection, theirs = Pipe()
        program = (
            f"import sys; sys.path[:] = {sys.path!r}; from fork_ranks import serve; serve({theirs.fileno()})"
        )
        self._process = subprocess.Popen(
            [sys.executable, "-c", program],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        theirs.close()

    def ranks(self, world):
        """Return a number of ranks."""
        return ForkedRanks(self, world)

    def call(self, work, *args, timeout_seconds):
        """Return `work(*args)` of a process without a group, which may fork ranks itself."""
        return self.run(0, work, *args, timeout_seconds=timeout_seconds)[0]

    def run(self, world, work, *args, timeout_seconds=120.0):
        """Run `work(*args)` on so many ranks; return the results by rank.

        Raises:
            RanksFailedError: A rank raised, died, or took too long; the message has each one's traceback.
        """
        try:
            self._connection.send_bytes(pickle.dumps((world, timeout_seconds, pickle.dumps((work, args)))))
            if not self._connection.poll(timeout_seconds + STARTUP_SECONDS):
                self.close()  # an answer that comes later would be taken for the next one
                raise RanksFailedError(
                    f"the process that forks the ranks has not answered in {timeout_seconds} s"
                )
            done, outcome = pickle.loads(self._connection.recv_bytes())
        except (OSError, EOFError):
            raise RanksFailedError("the process that forks the ranks has ended; its error is above") from None
        if not done:
            raise RanksFailedError(outcome)
        return [pickle.loads(each) for each in outcome]

    def close(self):
        """End the process, and what is left of its ranks."""
        self._connection.close()
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class ForkedRanks:
    """Fixed number of ranks, with the `run` of `mb_host.RankPool`."""

    def __init__(self, fork_server, world):
        self._fork_server, self._world = fork_server, world

    def run(self, work, *args):
        return self._fork_server.run(self._world, work, *args)


def serve(descriptor):
    """Import what all ranks need, then fork ranks for each run until the connection is closed."""
    connection = Connection(descriptor)
    import mb_guard
    import mb_host

    mb_host.install()
    mb_guard.install(quiet=True)
    for name in WANTED:
        import_module(name)
    gc.freeze()
    while True:
        try:
            world, timeout, task = pickle.loads(connection.recv_bytes())
        except EOFError:
            os._exit(0)
        connection.send_bytes(pickle.dumps(_run(world, timeout, task, connection)))


def _run(world, timeout, task, connection):
    with (
        socket.socket() as holder
    ):  # bound and not listening: assigned to no other socket, and rank 0's store can listen
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        ranks = {}
        for rank in range(world or 1):
            ours, theirs = Pipe()
            pid = os.fork()
            if pid == 0:
                for each in (connection, ours, *(other for other, _ in ranks.values())):
                    each.close()
                _be_rank(rank, world, holder.getsockname()[1], task, theirs)
            theirs.close()
            ranks[rank] = ours, pid
        try:
            return _answers(ranks, timeout)
        finally:
            for ours, pid in ranks.values():
                ours.close()
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def _answers(ranks, timeout):
    results, failures = {}, {}
    deadline = time.monotonic() + timeout
    open_ends = {ours: rank for rank, (ours, _) in ranks.items()}
    while open_ends and time.monotonic() < deadline:
        for ours in wait(list(open_ends), timeout=max(0.0, deadline - time.monotonic())):
            rank = open_ends.pop(ours)
            try:
                done, outcome = pickle.loads(ours.recv_bytes())
            except EOFError:
                done, outcome = False, "died"
            (results if done else failures)[rank] = outcome
            if not done:
                deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
    failures |= dict.fromkeys(open_ends.values(), "was ended")
    if failures:
        return False, "\n".join(f"rank {rank}: {failures[rank]}" for rank in failures)
    return True, [results[rank] for rank in sorted(results)]


def _be_rank(rank, world, port, task, answers):
    """Work, send the result, and wait to be killed: the store of rank 0 must outlive the other ranks."""
    import torch.distributed as dist

    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # with the process that forked this one
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world))
    try:
        if world:
            place = f"tcp://127.0.0.1:{port}"
            dist.init_process_group("gloo", init_method=place, rank=rank, world_size=world)
        work, args = pickle.loads(task)
        result = True, pickle.dumps(work(*args))
    except BaseException:  # noqa: BLE001  # a child must not continue as its parent
        result = False, traceback.format_exc()
    sys.stdout.flush()
    answers.send_bytes(pickle.dumps(result))
    signal.pause()
