"""Stop requests by signal (`train.exit_signal_handler`), agreed by all ranks. Imports torch."""

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

from mb_loop.collectives import any_rank
from mb_loop.errors import TrainSettingsError
from mb_loop.exits.exit_conditions import StopRequested
from mb_loop.settings import TrainSettings


class DistributedSignalHandler:
    """Context manager that records a signal and reports to all ranks which of them received it.

    Entering replaces the handler of the signal, and with several ranks creates a gloo process group over the world, so
    that no call synchronises with the device. Leaving restores the previous handler, which is also that of processes
    that are forked in the meantime. Entering, leaving and `signals_received` are collective over the world. The
    interface is that of Megatron's class of this name.

    Args:
        sig: signal to record.

    Attributes:
        released: True once it is left, until it is entered again.

    Raises:
        TrainSettingsError: on entering, on all ranks: a rank is not in its main thread, the only thread in which Python
            installs handlers, or the signal cannot be handled.
    """

    def __init__(self, sig: signal.Signals = signal.SIGTERM) -> None:
        self.sig = signal.Signals(sig)
        self.released = False
        self._received = False
        self._process: int | None = None
        self._previous: Any = None
        self._group: dist.ProcessGroup | None = None
        self._owns_group = False

    def __enter__(self) -> "DistributedSignalHandler":
        if any_rank(threading.current_thread() is not threading.main_thread()):
            raise TrainSettingsError(
                "train.exit_signal_handler: the loop does not run in the main thread of the process, and Python "
                "installs signal handlers only there. Run it in the main thread, or pass stop_requested and set "
                "train.exit_signal_handler=false."
            )
        self.released, self._received, self._process = False, False, os.getpid()
        try:
            self._previous = signal.signal(self.sig, self._record)
        except (OSError, ValueError) as error:
            raise TrainSettingsError(
                f"train.exit_signal: {self.sig.name} cannot be handled ({error}). Set a signal such as SIGTERM."
            ) from error
        self._open_group()
        return self

    def __exit__(self, *error: object) -> None:
        self.release()

    def release(self) -> bool:
        """Leave; return False if nothing is entered. Collective."""
        if self._process is None or self.released:
            return False
        self._restore()
        if self._owns_group and dist.is_initialized():
            dist.destroy_process_group(self._group)
        self._group, self._owns_group, self.released = None, False, True
        return True

    def signals_received(self) -> list[bool]:
        """Return for each rank of the world whether it received the signal since entering. Collective."""
        if self._group is None:
            return [self._received]
        flags = torch.zeros(self._group.size(), dtype=torch.int32)
        flags[self._group.rank()] = self._received
        dist.all_reduce(flags, group=self._group)
        return [bool(flag) for flag in flags.tolist()]

    def _record(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:  # a fork: only its parent runs the loop that stops
            self._restore()
            os.kill(os.getpid(), number)
            return
        self._received = True

    def _restore(self) -> None:
        signal.signal(self.sig, signal.SIG_DFL if self._previous is None else self._previous)

    def _open_group(self) -> None:
        if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
            return
        if dist.get_backend() == "gloo":
            self._group = dist.group.WORLD
        else:
            self._group, self._owns_group = dist.new_group(backend="gloo"), True


def stop_message(sig: signal.Signals, received: Sequence[bool]) -> str | None:
    """Return the signal and the first rank that received it, or None if no rank did."""
    ranks = [rank for rank, flag in enumerate(received) if flag]
    return f"{signal.Signals(sig).name} on rank {ranks[0]}" if ranks else None


class StopRequestSource:
    """Stop request source of one run: the caller's source combined with `train.exit_signal_handler`.

    The loop handles the signal itself while it runs (`handling_signal`), unless the caller passed a source and the
    signal has a handler on each rank already: then that handler is the caller's, and so is the decision.

    Args:
        train: `exit_signal_handler` and `exit_signal` are read.
        stop_requested: the caller's source; None: there is none.
    """

    def __init__(self, train: TrainSettings, stop_requested: StopRequested | None) -> None:
        self._train = train
        self._stop_requested = stop_requested
        self._handler: DistributedSignalHandler | None = None

    def __call__(self, step: int) -> str | None:
        """Return the reason to stop after this step, or None. Collective while the loop handles the signal."""
        text = None if self._stop_requested is None else self._stop_requested(step)
        if self._handler is None:
            return text
        received = stop_message(self._handler.sig, self._handler.signals_received())
        return received if text is None else text

    @contextmanager
    def handling_signal(self) -> Iterator[None]:
        """Handle the signal within the block, if configured. Collective over the world."""
        if not self._handles_signal():
            yield
            return
        with DistributedSignalHandler(self._train.exit_signal) as self._handler:
            try:
                yield
            finally:
                self._handler = None

    def _handles_signal(self) -> bool:
        if not self._train.exit_signal_handler:
            return False
        default = signal.getsignal(self._train.exit_signal) in (signal.SIG_DFL, signal.default_int_handler)
        return self._stop_requested is None or any_rank(default)
