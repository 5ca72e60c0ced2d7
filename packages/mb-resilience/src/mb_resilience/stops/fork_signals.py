"""Signal handlers that processes forked in the meantime do not inherit. Standard library only.

A handler that only records a signal would keep a forked process from being terminated, and Python would wait for it
forever at its end. Checking the process in the handler is not enough: Python drops the signals that a forked process
receives before it has set up its interpreter. They are blocked during a fork, and take effect once the previous
handlers are back.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterable

_handlers: dict[int, tuple[frozenset[int], Callable[[], object]]] = {}
"""Signals that have a handler, and the function that restores the previous ones; by key, the innermost last."""
_forking = threading.local()


def restore_in_forks(key: object, signals: Iterable[int], restore: Callable[[], object]) -> None:
    """Call `restore` in processes that are forked from now on, until `forget`."""
    _handlers[id(key)] = (frozenset(signals), restore)


def forget(key: object) -> None:
    """Call the function of a key no longer."""
    _handlers.pop(id(key), None)


def _block() -> None:
    watched = frozenset[int]().union(*(signals for signals, _ in [*_handlers.values()]))
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, watched)


def _unblock() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _restore() -> None:
    for _, restore in reversed([*_handlers.values()]):
        restore()
    _handlers.clear()
    _unblock()


os.register_at_fork(before=_block, after_in_parent=_unblock, after_in_child=_restore)
