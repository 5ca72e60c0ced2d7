"""Stop requests of a run before its last step, agreed by all ranks: a signal, or a duration limit. No torch."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Protocol

from mb_resilience.process_group import RankInfo, new_connection
from mb_resilience.stops.agreed_stop import AgreedStop, Watcher, require_watcher
from mb_resilience.stops.decision_exchange import KeyValueStore
from mb_resilience.stops.signals import announce_stop, watch_run_signals


class DeadlineWatcher:
    """Watcher that requests a stop when the job has run for a number of minutes on this rank.

    Args:
        minutes: duration of the job.
        start_time: start of the job, on `clock`.
        what: name of the limit in the reason, such as the setting.
        clock: returns the time in seconds; read once.
        timer: monotonic clock in seconds, on which a clock that is set during the run has no effect.
    """

    def __init__(
        self,
        minutes: float,
        *,
        start_time: float,
        what: str = "the time",
        clock: Callable[[], float] = time.time,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self._end = timer() + start_time + 60 * minutes - clock()
        self._text = f"{what} has passed"
        self._timer = timer

    @property
    def received(self) -> str | None:
        """Reason of the stop request; None before the deadline."""
        return self._text if self._timer() >= self._end else None


class CombinedWatcher:
    """Watcher that combines several watchers.

    Args:
        watchers: watchers in the order in which they are checked.
    """

    def __init__(self, *watchers: Watcher) -> None:
        self._watchers = watchers

    @property
    def received(self) -> str | None:
        """First stop request among the watchers; None without a request."""
        requests = (watcher.received for watcher in self._watchers)
        return next((request for request in requests if request is not None), None)


STORE_TIMEOUT_SECONDS = 600.0
"""Longest wait for an answer of the store, such as while rank 0 is suspended."""


class StopSettings(Protocol):
    """Settings of the stop of a run, such as Megatron's TrainingConfig."""

    @property
    def exit_signal(self) -> signal.Signals:
        """Signal that ends the run after the current step, in addition to Ctrl-C."""

    @property
    def exit_duration_in_mins(self) -> float | None:
        """Duration limit of the job in minutes; None: no limit."""


class StopRequests:
    """Stop requests that a loop polls after each step and during evaluations. Identical on all ranks.

    Every rank has one. The ranks agree through the store, so that no step waits for a collective; see `AgreedStop`. One
    agreement, with one connection and one thread, serves signals, the duration limit and evaluations.

    Args:
        watcher: source of stop requests on this rank, such as `SignalWatcher`.
        deadline: duration limit, such as `DeadlineWatcher`; None: no limit.
        store: store shared by all ranks; None for a single rank.
        rank: rank of this process.
        world_size: number of ranks.
        attempt: name of this start of the run, identical on all ranks and different after each restart.
        connect: function that returns a connection to the store for one thread, on all ranks or on none. Requests are
            then exchanged in the background, until `close`. None: in the calls.

    Raises:
        StopSetupError: several ranks without a store, or invalid numbers.
    """

    def __init__(
        self,
        watcher: Watcher,
        *,
        deadline: Watcher | None = None,
        store: KeyValueStore | None = None,
        rank: int = 0,
        world_size: int = 1,
        attempt: str = "0",
        connect: Callable[[], KeyValueStore] | None = None,
    ) -> None:
        threaded = connect is not None and world_size > 1
        sources = [_Source(watcher, _SIGNAL), *([] if deadline is None else [_Source(deadline, _TIME)])]
        self._agreed = AgreedStop(
            CombinedWatcher(*sources),
            store=connect() if connect is not None and threaded else store,
            rank=rank,
            world_size=world_size,
            attempt=attempt,
            in_background=threaded,
        )
        self._step: int | None = None
        self._request: tuple[str, str] | None = None
        self._has_deadline = deadline is not None
        self.evaluation_stopped = False
        """Whether an evaluation was stopped early."""

    def stop_requested(self, step: int) -> str | None:
        """Return the signal for which all ranks stop after this step, or None; called after each step.

        Raises:
            StopOrderError: the step does not follow the previous one, or comes after the agreed stop.
            Rank0TimeoutError: rank 0 has not ended the previous step in time.
        """
        return self._reason(step, _SIGNAL)

    @property
    def duration_stop_requested(self) -> Callable[[int], str | None] | None:
        """The same for the duration limit; None without a limit. A loop may call both after a step."""
        return partial(self._reason, about=_TIME) if self._has_deadline else None

    def stop_evaluation(self) -> bool:
        """Return whether to stop an evaluation, for either reason; called before each of its batches."""
        if not self.evaluation_stopped:
            self.evaluation_stopped = self._agreed.between_steps() is not None
        return self.evaluation_stopped

    def close(self) -> None:
        """Publish the last decision, and end the thread."""
        self._agreed.close()

    def _reason(self, step: int, about: str) -> str | None:
        if step != self._step:
            reason = self._agreed(step)
            source, _, text = (reason or "").partition(" ")
            self._step, self._request = step, (source, text)
        source, text = self._request or ("", "")
        return text if source == about else None


_SIGNAL, _TIME = "signal", "time"
"""First word of a request in the store, because a loop reports signals and the duration limit as different outcomes."""


class _Source:
    """Watcher whose requests begin with a word for their kind."""

    def __init__(self, watcher: Watcher, kind: str) -> None:
        require_watcher(watcher)
        self._watcher = watcher
        self._kind = kind

    @property
    def received(self) -> str | None:
        request = self._watcher.received
        return None if request is None else f"{self._kind} {request}"


@contextmanager
def watch_stop_requests(
    train: StopSettings,
    *,
    world: RankInfo,
    store: KeyValueStore | None = None,
    start_time: float | None = None,
    launched: bool = False,
    process_ends: bool = False,
    announce: Callable[[str], object] = announce_stop,
) -> Iterator[StopRequests]:
    """Receive Ctrl-C and the exit signal while the block runs, and yield the stop requests of all ranks.

    With several ranks, a thread of each exchanges the requests (`AgreedStop(in_background=True)`). The logging rank
    prints immediately that a signal has arrived.

    Args:
        train: section with the signal and the duration limit.
        world: rank of this process.
        store: store shared by all ranks; None for a single rank.
        start_time: start of the job in seconds since the epoch; None: no duration limit applies.
        launched: whether a launcher such as torchrun started this process, which forwards Ctrl-C.
        process_ends: whether the process ends with the run; the exit signal is then ignored after the block.
        announce: called on the logging rank, in the handler, with the name of the first signal.

    Raises:
        StopSetupError: several ranks without a store.
    """
    deadline, minutes = None, train.exit_duration_in_mins
    if minutes is not None and start_time is not None:
        limit = f"train.exit_duration_in_mins={minutes}"
        deadline = DeadlineWatcher(minutes, start_time=start_time, what=limit)
    with watch_run_signals(
        train.exit_signal,
        launched=launched,
        announce=announce if world.is_logging_rank else None,
        process_ends=process_ends,
    ) as watcher:
        requests = StopRequests(
            watcher,
            deadline=deadline,
            store=store,
            rank=world.rank,
            world_size=world.world_size,
            attempt=world.attempt,
            connect=None
            if store is None
            else partial(new_connection, store, timeout_seconds=STORE_TIMEOUT_SECONDS),
        )
        try:
            yield requests
        finally:
            requests.close()
