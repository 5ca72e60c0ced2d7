"""Handlers of several signals, and the standard streams of a terminal that has ended. Standard library only."""

import os
import signal
from collections.abc import Callable, Iterable, Mapping
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], object] | signal.Handlers


def install(signals: Iterable[int], handler: Handler) -> dict[int, Any]:
    """Install one handler for several signals, and return the previous ones, for `put_back`.

    Raises:
        OSError: A signal cannot be caught, such as SIGKILL; no handler is changed.
    """
    previous: dict[int, Any] = {}
    try:
        for number in dict.fromkeys(signals):  # twice, its previous handler would be this one
            previous[number] = signal.signal(number, handler)
    except OSError:
        put_back(previous)
        raise
    return previous


def put_back(previous: Mapping[int, Any]) -> None:
    """Install the previous handlers, or the default of a signal whose handler was not installed from Python (None)."""
    for number, handler in previous.items():
        signal.signal(number, signal.SIG_DFL if handler is None else handler)


def terminals() -> list[int]:
    """Return which of stdout and stderr are a terminal, for `discard_output`."""
    return [descriptor for descriptor in (1, 2) if os.isatty(descriptor)]


def discard_output(descriptors: Iterable[int]) -> None:
    """Discard further output: the terminal has ended (SIGHUP), and printing would raise. Safe in a signal handler."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in descriptors:
        os.dup2(nowhere, descriptor)
    os.close(nowhere)
