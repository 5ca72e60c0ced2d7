"""Notice that somebody wants the run to stop, without stopping in the middle of something."""

import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True, slots=True)
class IgnoreSignals:
    """Called in a worker process of a data loader: it outlives signals that its trainer decides about.

    A terminal, and many a launcher, send a signal to the workers as well; they would die of it under a trainer that
    wants to finish its step and save. Fits `worker_init_fn`, and can be pickled.
    """

    signals: tuple[signal.Signals, ...] = _STOP_SIGNALS
    """What to ignore; the trainer ends its workers itself."""

    def __call__(self, worker: int) -> None:
        """Ignore the signals in this process, for good."""
        for number in self.signals:
            signal.signal(number, signal.SIG_IGN)


class SignalWatcher:
    """Remember the first of some signals, as long as the block runs.

    The handler only takes a note, so it may interrupt anything. A second SIGINT (Ctrl-C pressed again) raises
    KeyboardInterrupt at once, wherever the program is. Python lets only the main thread install handlers: entered in
    another thread, the watcher installs nothing, `installed` is False and `received` stays None.

    The handlers found are put back at the end of the block, so watchers may be nested.

    Args:
        signals: which signals ask for a stop.
        same_press_seconds: a SIGINT that follows the first one sooner than this is taken for the same key press.
            Launchers such as torchrun pass Ctrl-C on to processes that got it from the terminal already.
        announce: called in the handler with the first signal's name, to tell a person at once; it must be as harmless
            as `os.write`, because anything may be interrupted.
        clock: seconds, for `debounce_seconds`.

    Raises:
        OSError: on entering, for a signal that cannot be caught; the handlers are as before.
    """

    def __init__(
        self,
        signals: Sequence[signal.Signals] = _STOP_SIGNALS,
        *,
        debounce_seconds: float = 0.0,
        announce: Callable[[str], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._signals = tuple(signals)
        self._same_press_seconds = debounce_seconds
        self._publish_request = announce
        self._clock = clock
        self._replaced: dict[signal.Signals, Any] = {}
        self._received: str | None = None
        self._first_interrupt: float | None = None

    @property
    def received(self) -> str | None:
        """Name of the first signal received, such as "SIGTERM"; None so far."""
        return self._received

    @property
    def installed(self) -> bool:
        """Whether the handlers are in place."""
        return bool(self._replaced)

    def __enter__(self) -> "SignalWatcher":
        if threading.current_thread() is threading.main_thread():
            try:
                for number in self._signals:
                    self._replaced[number] = signal.signal(number, self._note)
            except OSError:  # a signal that cannot be caught, such as SIGKILL
                self._put_back()
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._put_back()

    def _put_back(self) -> None:
        for number, handler in self._replaced.items():
            # None stands for a handler that was not installed from Python and cannot be put back.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._replaced.clear()

    def _note(self, number: int, frame: FrameType | None) -> None:
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
