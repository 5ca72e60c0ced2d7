"""Ordered parallel map over worker processes."""

import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar, cast

from mb_data.errors import WorkerError

Argument = TypeVar("Argument")
Result = TypeVar("Result")

MAX_PENDING = 4
"""Maximum number of results per worker that wait for an earlier result. Bounds memory."""

_WORKER_DIED = (
    "a worker process exited without a result; it was killed, ran out of memory, or failed with the output above. "
    "Use fewer workers, or smaller documents."
)
_PROGRAM = """
import sys
from multiprocessing.connection import Connection

connection = Connection(int(sys.argv[1]))
sys.path[:] = connection.recv()
serve, function = connection.recv()
serve(connection, function)
"""


def map_in_order(
    function: Callable[[Argument], Result], arguments: Iterable[Argument], *, workers: int
) -> Iterator[Result]:
    """Yield `function(argument)` for each argument, in order, computed by `workers` processes.

    With one worker the calling process computes the results. Workers are new interpreters that do not run the script of
    the caller, unlike those of `multiprocessing`, so the function must be picklable and importable. It is sent to each
    process once. Arguments are consumed on demand: at most `MAX_PENDING` results per worker are held.

    Raises:
        ValueError: `workers` is below 1.
        WorkerError: A process exited without a result.
        Exception: The exception of the function for the first argument for which it raises.
    """
    if workers < 1:
        raise ValueError(f"workers: {workers} is below 1; at least one process is required. Use 1 or more.")
    if workers == 1:
        yield from map(function, arguments)
        return
    with _processes(function, workers) as idle:
        yield from _in_order(idle, iter(arguments), max_pending=MAX_PENDING * workers)


def _in_order(idle: list[Connection], arguments: Iterator[Any], *, max_pending: int) -> Iterator[Any]:
    """Send arguments to idle workers, collect results, and yield them in the order of the arguments."""
    busy: dict[Connection, int] = {}
    answers: dict[int, Any] = {}
    sent = yielded = 0
    more = True
    while more or busy or answers:
        while more and idle and sent - yielded < max_pending:
            try:
                argument = next(arguments)
            except StopIteration:
                more = False
                break
            connection = idle.pop()
            _send(connection, (argument,))
            busy[connection] = sent
            sent += 1
        for connection in cast(list[Connection], wait(list(busy)) if busy else []):
            answers[busy.pop(connection)] = _receive(connection)
            idle.append(connection)
        while yielded in answers:
            result, error = answers.pop(yielded)
            if error is not None:
                raise error
            yield result
            yielded += 1


def _send(connection: Connection, message: object) -> None:
    try:
        connection.send(message)
    except BrokenPipeError as error:
        raise WorkerError(_WORKER_DIED) from error


def _receive(connection: Connection) -> Any:
    try:
        return connection.recv()
    except (EOFError, ConnectionResetError) as error:
        raise WorkerError(_WORKER_DIED) from error


@contextmanager
def _processes(function: Callable[[Any], Any], workers: int) -> Iterator[list[Connection]]:
    """Start processes that wait for arguments, and kill them at the end of the block."""
    connections: list[Connection] = []
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(workers):
            local, remote = Pipe()
            command = [sys.executable, "-c", _PROGRAM, str(remote.fileno())]
            processes.append(subprocess.Popen(command, pass_fds=[remote.fileno()]))
            remote.close()
            connections.append(local)
            _send(local, sys.path)  # first: the next message is unpickled with it
            _send(local, (_serve, function))
        yield list(connections)
    finally:
        for connection in connections:
            connection.close()
        for process in processes:
            process.kill()
            process.wait()


def _serve(connection: Connection, function: Callable[[Any], Any]) -> None:
    """Send (result, None) or (None, error) for each received argument, until the connection is closed."""
    while True:
        try:
            (argument,) = connection.recv()
        except (EOFError, ConnectionResetError):
            return
        try:
            answer: tuple[Any, Exception | None] = (function(argument), None)
        except Exception as error:  # noqa: BLE001 (re-raised in the calling process)
            answer = (None, error)
        connection.send(answer)
