"""Child processes: a forked copy of this process, or a fresh interpreter that does not import the main module.

`depend_on_parent` is the first call in one.
"""

import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from multiprocessing.context import ForkProcess
from typing import Protocol

PYNVML = "ignore:The pynvml package is deprecated:FutureWarning"
"""torch warns at its import if the package `pynvml`, which nvidia-resiliency-ext requires, is installed. The training
process has printed it; no code of the user runs in a new interpreter."""


_PR_SET_PDEATHSIG = 1
_IGNORED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that a terminal or a scheduler sends to all processes, and that only the training process handles."""


def depend_on_parent(parent: int) -> None:
    """Let this process ignore signals that the training process handles, and die with it; `parent` is its number."""
    for number in _IGNORED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # The parent died before the call, and its signal will not come.
    if os.getppid() != parent:
        os._exit(0)


class ChildProcess(Protocol):
    """Interface of a child process."""

    @property
    def pid(self) -> int | None:
        """Process id."""

    @property
    def exitcode(self) -> int | None:
        """Exit code, or the negative number of the signal that ended the process; None while it runs."""

    def is_alive(self) -> bool:
        """Return whether the process is running."""

    def kill(self) -> None:
        """Kill the process."""

    def join(self, timeout: float | None = None) -> None:
        """Wait for the process to exit."""


def fork(target: Callable[..., None], arguments: Sequence[object]) -> ForkProcess:
    """Fork this process and call a function in the child. They share memory until one of them changes it."""
    process = multiprocessing.get_context("fork").Process(target=target, args=tuple(arguments), daemon=True)
    process.start()
    return process


class FreshInterpreter:
    """New interpreter, in its own session, that calls a function of a module.

    Args:
        module: Module that defines the function.
        function: Name of the function.
        arguments: Positional arguments: integers and None.
        descriptors: File descriptors that the process inherits under the same numbers.
    """

    def __init__(
        self, module: str, function: str, arguments: Sequence[int | None], descriptors: Sequence[int]
    ) -> None:
        values = ", ".join(repr(argument) for argument in arguments)
        program = (
            f"import sys; sys.path[:] = {sys.path!r}; from {module} import {function}; {function}({values})"
        )
        self._process = subprocess.Popen(
            [sys.executable, "-W", PYNVML, "-c", program],
            pass_fds=tuple(descriptors),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def exitcode(self) -> int | None:
        """Exit code, or the negative number of the signal that ended the process; None while it runs."""
        return self._process.poll()

    def is_alive(self) -> bool:
        """Return whether the process is running."""
        return self._process.poll() is None

    def kill(self) -> None:
        """Kill the process."""
        self._process.send_signal(signal.SIGKILL)

    def join(self, timeout: float | None = None) -> None:
        """Wait for the process to exit."""
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return
