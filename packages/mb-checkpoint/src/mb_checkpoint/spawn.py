"""Processes of one's own: a copy of this one, or a fresh interpreter that imports no main module."""

import multiprocessing
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from multiprocessing.context import ForkProcess
from typing import Protocol


class ChildProcess(Protocol):
    """A running process."""

    @property
    def pid(self) -> int | None:
        """Its process id."""

    @property
    def exitcode(self) -> int | None:
        """How it ended, minus the number of a signal; None while it runs."""

    def is_alive(self) -> bool:
        """Say whether it runs."""

    def kill(self) -> None:
        """End it at once."""

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end."""


def fork(target: Callable[..., None], arguments: Sequence[object]) -> ForkProcess:
    """Start a copy of this process. It shares the memory until one of the two changes it."""
    process = multiprocessing.get_context("fork").Process(target=target, args=tuple(arguments), daemon=True)
    process.start()
    return process


class FreshInterpreter:
    """A new interpreter that calls a function of a module, in a session of its own.

    Args:
        module: Where the function is.
        function: Its name.
        arguments: Numbers and None, by position.
        descriptors: Files that it inherits under the same numbers.
    """

    def __init__(
        self, module: str, function: str, arguments: Sequence[int | None], descriptors: Sequence[int]
    ) -> None:
        given = ", ".join(repr(each) for each in arguments)
        program = (
            f"import sys; sys.path[:] = {sys.path!r}; from {module} import {function}; {function}({given})"
        )
        self._process = subprocess.Popen(
            [sys.executable, "-c", program],
            pass_fds=tuple(descriptors),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def exitcode(self) -> int | None:
        """How it ended, minus the number of a signal; None while it runs."""
        return self._process.poll()

    def is_alive(self) -> bool:
        """Say whether it runs."""
        return self._process.poll() is None

    def kill(self) -> None:
        """End it at once."""
        self._process.send_signal(signal.SIGKILL)

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end."""
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return
