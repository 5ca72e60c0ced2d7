"""A function applied by several processes, its results in the order of the arguments."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar, cast

Argument = TypeVar("Argument")
Result = TypeVar("Result")

AHEAD = 4
"""Results for each worker that may wait for an earlier one: bounds memory."""

_GONE = (
    "a worker process ended without an answer; it was killed, or there was not enough memory. "
    "Use fewer workers, or smaller documents."
)


class WorkerError(RuntimeError):
    """A worker process ended without an answer: killed, or out of memory."""


def map_in_order(
    function: Callable[[Argument], Result], arguments: Iterable[Argument], *, workers: int
) -> Iterator[Result]:
    """Yield `function(argument)` for each argument, in order, computed by `workers` processes.

    With one worker this process does it. The processes are spawned, so a script that calls this needs the usual
    `if __name__ == "__main__":`. The function is sent to each process once. Arguments are taken as they are needed: at
    most `AHEAD` results for each worker are held.

    Raises:
        ValueError: `workers` is below 1.
        WorkerError: A process ended without an answer.
        Exception: Whatever the function raised, for the first argument that made it raise.
    """
    if workers < 1:
        raise ValueError(f"workers: {workers}; somebody has to do the work. Use 1 or more.")
    if workers == 1:
        yield from map(function, arguments)
        return
    with _processes(function, workers) as idle:
        yield from _in_order(idle, iter(arguments), most_ahead=AHEAD * workers)


def _in_order(idle: list[Connection], arguments: Iterator[Any], *, most_ahead: int) -> Iterator[Any]:
    """Hand out arguments to idle workers, collect answers, and yield them by number."""
    busy: dict[Connection, int] = {}
    answers: dict[int, Any] = {}
    given = taken = 0
    more = True
    while more or busy or answers:
        while more and idle and given - taken < most_ahead:
            try:
                argument = next(arguments)
            except StopIteration:
                more = False
                break
            connection = idle.pop()
            _send(connection, argument)
            busy[connection] = given
            given += 1
        for connection in cast(list[Connection], wait(list(busy)) if busy else []):
            answers[busy.pop(connection)] = _answer(connection)
            idle.append(connection)
        while taken in answers:
            result, error = answers.pop(taken)
            if error is not None:
                raise error
            yield result
            taken += 1


def _send(connection: Connection, argument: object) -> None:
    try:
        connection.send((argument,))
    except BrokenPipeError as error:
        raise WorkerError(_GONE) from error


def _answer(connection: Connection) -> Any:
    try:
        return connection.recv()
    except (EOFError, ConnectionResetError) as error:
        raise WorkerError(_GONE) from error


@contextmanager
def _processes(function: Callable[[Any], Any], workers: int) -> Iterator[list[Connection]]:
    """Start processes that wait for arguments; end them with the block, whatever they are doing."""
    context = get_context("spawn")
    connections: list[Connection] = []
    processes: list[BaseProcess] = []
    try:
        for _ in range(workers):
            here, there = context.Pipe()
            process: BaseProcess = context.Process(target=_serve, args=(there, function), daemon=True)
            process.start()
            there.close()
            connections.append(here)
            processes.append(process)
        yield list(connections)
    finally:
        for connection in connections:
            connection.close()
        for process in processes:
            process.terminate()
            process.join()


def _serve(connection: Connection, function: Callable[[Any], Any]) -> None:
    """Answer each argument with (result, None) or (None, error) until the other end is closed."""
    while True:
        try:
            (argument,) = connection.recv()
        except EOFError:
            return
        try:
            answer: tuple[Any, Exception | None] = (function(argument), None)
        except Exception as error:  # noqa: BLE001 (raised again in the calling process)
            answer = (None, error)
        connection.send(answer)
