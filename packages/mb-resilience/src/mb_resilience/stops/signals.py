"""Signal handlers that record a stop request, so that the training loop can complete its step."""

import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any

from mb_resilience.errors import StopSetupError
from mb_schema.signal_handlers import discard_output, install, put_back, terminals

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


_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
LAUNCHED_DEBOUNCE_SECONDS = 1.0
"""Time within which one press of Ctrl-C may arrive twice: from the terminal, and forwarded by a launcher."""
TERMINAL_DEBOUNCE_SECONDS = 0.2
"""The same for a process without a launcher."""


@dataclass(frozen=True, slots=True)
class IgnoreSignals:
    """Picklable `worker_init_fn` for a data loader, with which worker processes ignore signals handled by the trainer.

    A terminal, and many launchers, send a signal to the workers as well. Without this function the workers would
    terminate while the trainer completes its step and saves.
    """

    signals: tuple[signal.Signals, ...] = _STOP_SIGNALS
    """Signals to ignore; the trainer terminates its workers itself."""

    def __call__(self, worker: int) -> None:
        """Ignore the signals in this process permanently."""
        for number in self.signals:
            signal.signal(number, signal.SIG_IGN)


class SignalWatcher:
    """Context manager that records the first of several signals.

    The handler only records the signal, so that it may interrupt any code. A second SIGINT (Ctrl-C pressed again)
    raises KeyboardInterrupt immediately. Python allows only the main thread to install handlers: entered in another
    thread, the watcher installs nothing and warns, `installed` is False and `received` remains None.

    The previous handlers are restored at the end of the block. Watchers may be nested. A process that is forked within
    the block is not watched: signals have their previous effect there, so that `terminate` ends it.

    Args:
        signals: signals that request a stop, or their names.
        debounce_seconds: a SIGINT within this time of the first one counts as the same key press. Launchers such as
            torchrun forward Ctrl-C to processes that already received it from the terminal. None: 1 s in a process
            with RANK in its environment, which a launcher sets, else 0.2 s.
        announce: called in the handler with the name of the first signal, to inform the user immediately. It must be as
            safe as `os.write`, because it may interrupt any code.
        ignore_afterwards: signals to ignore permanently after the block, for a process that ends with its run: a second
            one must not end it before its last lines.
        clock: returns the time in seconds, for `debounce_seconds`.

    Raises:
        OSError: on entering, for a signal that cannot be caught; the previous handlers are restored.
        StopSetupError: a name is not that of a signal; from `received`, the watcher was never entered.
    """

    def __init__(
        self,
        signals: Sequence[signal.Signals | str] = _STOP_SIGNALS,
        *,
        debounce_seconds: float | None = None,
        announce: Callable[[str], object] | None = None,
        ignore_afterwards: Sequence[signal.Signals] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._signals = tuple(map(_signal, signals))
        self._ignored_afterwards = tuple(ignore_afterwards)
        if debounce_seconds is None:
            is_launched = "RANK" in os.environ
            debounce_seconds = LAUNCHED_DEBOUNCE_SECONDS if is_launched else TERMINAL_DEBOUNCE_SECONDS
        self._same_press_seconds = debounce_seconds
        self._publish_request = announce
        self._clock = clock
        self._replaced: dict[int, Any] = {}
        self._received: str | None = None
        self._first_interrupt: float | None = None
        self._was_entered = False
        self._terminals: list[int] = []

    @property
    def received(self) -> str | None:
        """Name of the first signal received, such as "SIGTERM"; None if no signal was received.

        Raises:
            StopSetupError: the watcher was never entered, so that a signal ends the process instead.
        """
        if not self._was_entered:
            raise StopSetupError(
                "SignalWatcher: received is read, but the watcher was never entered, so that a signal ends the process "
                "at once and nothing is saved. Put the loop into `with watcher:`."
            )
        return self._received

    @property
    def installed(self) -> bool:
        """Whether the handlers are installed."""
        return bool(self._replaced)

    def __enter__(self) -> "SignalWatcher":
        self._was_entered = True
        self._terminals = terminals()
        if threading.current_thread() is not threading.main_thread():
            names = ", ".join(number.name for number in self._signals)
            warnings.warn(
                f"SignalWatcher: entered outside of the main thread, where Python installs no handlers: {names} end "
                "the process as without it. Enter it in the main thread.",
                RuntimeWarning,
                stacklevel=2,
            )
        else:
            self._replaced = install(self._signals, self._note)
            restore_in_forks(self, self._signals, self._put_back)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        installed = self.installed
        self._put_back()
        if installed:
            for number in self._ignored_afterwards:
                signal.signal(number, signal.SIG_IGN)

    def _put_back(self) -> None:
        put_back(self._replaced)
        self._replaced = {}
        forget(self)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            discard_output(self._terminals)  # printing would raise before the run has saved
        if self._received is None:
            self._received = signal.Signals(number).name
            if self._publish_request is not None:
                self._publish_request(self._received)
        if number == signal.SIGINT:
            self._interrupt()

    def _interrupt(self) -> None:
        now = self._clock()
        if self._first_interrupt is None:
            self._first_interrupt = now
        elif now - self._first_interrupt >= self._same_press_seconds:
            raise KeyboardInterrupt


def _signal(requested: signal.Signals | str) -> signal.Signals:
    """Return a signal by itself, its number or its name.

    Raises:
        StopSetupError: there is no such signal.
    """
    try:
        return signal.Signals[requested] if isinstance(requested, str) else signal.Signals(requested)
    except (KeyError, ValueError):
        raise StopSetupError(
            f"SignalWatcher: {requested!r} is not a signal. Pass signals such as signal.SIGTERM, or names such as "
            "'SIGTERM'."
        ) from None


def watch_run_signals(
    exit_signal: signal.Signals,
    *,
    launched: bool,
    announce: Callable[[str], object] | None = None,
    process_ends: bool = False,
) -> SignalWatcher:
    """Return the watcher of Ctrl-C, of the signal that ends a run, and of the end of the terminal (SIGHUP).

    A SIGHUP that is ignored, as nohup does, stays ignored; one that has a handler keeps it.

    Args:
        exit_signal: signal with which a scheduler ends the run.
        launched: whether a launcher such as torchrun started this process, which forwards Ctrl-C.
        announce: called in the handler with the name of the first signal, such as `announce_stop`.
        process_ends: whether the process ends with the run; the exit signal is then ignored from the end of the run.
    """
    hangup = [signal.SIGHUP] if signal.getsignal(signal.SIGHUP) == signal.SIG_DFL else []
    return SignalWatcher(
        (signal.SIGINT, exit_signal, *hangup),
        debounce_seconds=LAUNCHED_DEBOUNCE_SECONDS if launched else TERMINAL_DEBOUNCE_SECONDS,
        announce=announce,
        ignore_afterwards=(exit_signal,) if process_ends else (),
    )


def announce_stop(name: str) -> None:
    """Print that a signal has arrived; the current step is finished first. Safe in a signal handler."""
    with suppress(OSError):  # the terminal has ended
        os.write(1, f"\n{name}: stopping after this step (Ctrl-C again: at once)\n".encode())
