"""Agreement of all ranks on the step after which to stop, over a key-value store. No collective, no torch.

Protocol. Rank 0 decides and the other ranks follow. Only certain steps count, the *rounds*: every step, or every n-th,
and each call of `between_steps`.
At the end of round p, rank 0 checks whether any rank has a stop request. If so, it fixes the next round, p + 1, as the
last one. Only then does it publish "round p is decided" together with that decision.

At the end of round t, every other rank waits until round t - 1 is published, and stops if round t is the last one. A
rank that ends round t therefore knows all decisions that can concern round t, because a decision made in round p
concerns p + 1 only. Either every rank stops after round t or no rank does, however far the ranks drift apart: the
protocol assumes nothing about the training step. Usually the wait is immediate: a step ends with collectives in which
rank 0 participates, so rank 0 has already ended the previous step.

The wait cannot deadlock: rank 0 needs nothing for round t - 1 that a rank at the end of round t has not contributed.
No stop request is lost: it is written to the store at the end of the step in which it arrives, and rank 0 checks in
every round. If the steps keep the ranks synchronized, the stop follows at most two rounds after the one with the
signal.
"""

import operator
import time
from collections.abc import Callable
from inspect import getattr_static
from typing import Protocol, SupportsIndex

from mb_resilience.errors import Rank0TimeoutError, StopOrderError, StopSetupError
from mb_resilience.stops.decision_exchange import BackgroundExchange, DirectExchange, Exchange, KeyValueStore


class Watcher(Protocol):
    """Source of stop requests on one rank, such as `SignalWatcher`."""

    @property
    def received(self) -> str | None:
        """Reason of the stop request, such as the name of a signal; None without a request."""


def require_watcher(watcher: object) -> None:
    """Raise `StopSetupError` if an object is not a watcher."""
    # not read: it may be a property that reads a clock
    if isinstance(watcher, type) or getattr_static(watcher, "received", ...) is ...:
        raise StopSetupError(
            f"AgreedStop: {watcher!r:.60} is not a watcher (it has no attribute `received`), so no signal would "
            "stop the run. Pass an object, such as the one that `with SignalWatcher() as watcher` returns."
        )


class AgreedStop:
    """Callable that returns the reason to stop after a step, or None. Identical on all ranks.

    Every rank must call it with the number of every step, in order, after the step. The reason names the signal and the
    rank that received it, such as "SIGTERM on rank 1". With several ranks, the first round of a run is never the last
    one. An evaluation calls `between_steps`, on all ranks equally often.

    The store must outlive the last call on every rank: end a run with an operation in which all ranks participate.

    Cost: one round trip to the store per round (two on rank 0), plus one at the first round. With `in_background` a
    thread makes them: rank 0 then sees a request of another rank one round later, and no rank waits in a call unless
    rank 0 is more than a round behind.

    Args:
        watcher: source of stop requests on this rank.
        store: store shared by all ranks; required with several ranks.
        rank: rank of this process.
        world_size: number of ranks.
        attempt: name of this start of the run, identical on all ranks, and different after each restart if the store
            outlives a restart. Keys of other attempts are ignored.
        every: number of steps per round.
        in_background: let a thread access the store, so that a call costs no round trip. The store must then be a
            connection of this object alone (`rank_and_store(of_thread=True)` returns one), and `close` is required.
        timeout_seconds: longest wait for rank 0, in seconds.
        clock: returns the time in seconds.
        sleep: sleeps for a number of seconds.

    Raises:
        StopSetupError: several ranks without a store, invalid numbers, or an object that is not a watcher.
    """

    def __init__(  # noqa: PLR0913 (clock and sleep are for tests)
        self,
        watcher: Watcher,
        *,
        store: KeyValueStore | None = None,
        rank: int = 0,
        world_size: int = 1,
        attempt: str = "0",
        every: int = 1,
        in_background: bool = False,
        timeout_seconds: float = 600.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        require_watcher(watcher)
        if not 0 <= rank < world_size or every < 1:
            raise StopSetupError(
                f"AgreedStop: rank={rank}, world_size={world_size}, every={every}; the rank must be in the range of "
                "the world size and a round has at least one step. Pass the rank and size of the process group."
            )
        if world_size > 1 and store is None:
            raise StopSetupError(
                f"AgreedStop: world_size={world_size} without a store. The ranks cannot agree. "
                "Pass a store that all ranks share, such as the torch.distributed.TCPStore of the run."
            )
        self._watcher = watcher
        self._rank = rank
        self._every = every
        self._timeout_seconds = timeout_seconds
        self._exchange: Exchange | None = None
        if store is not None:
            direct = DirectExchange(
                store,
                prefix=f"mb_resilience/stop/{attempt}",
                timeout_seconds=timeout_seconds,
                clock=clock,
                sleep=sleep,
            )
            self._exchange = BackgroundExchange(direct) if in_background else direct
        self._request_sent = False
        self._step: int | None = None
        self._stop_step: int | None = None
        self._round = 0
        self._label = ""
        self._last: tuple[int, str] | None = None

    def __call__(self, step: int) -> str | None:
        """Return the reason why all ranks stop after this step, or None.

        Raises:
            StopOrderError: the step is not a whole number, does not follow the previous one, or comes after the agreed
                stop.
            StopSetupError: the watcher is a `SignalWatcher` that was never entered.
            Rank0TimeoutError: rank 0 has not ended the previous round in time.
        """
        if isinstance(step, bool) or not isinstance(step, SupportsIndex):
            raise StopOrderError(
                f"AgreedStop: called with {step!r}, which is not the number of a step. Pass an int."
            )
        step = operator.index(step)
        if self._step is not None and step != self._step + 1:
            raise StopOrderError(
                f"AgreedStop: called with step {step} after step {self._step}. A stop is agreed for the round that "
                "follows, so no step may be skipped. Create a new AgreedStop, with another attempt, for another run."
            )
        if self._stop_step is not None and self._last is not None:
            raise StopOrderError(
                f"AgreedStop: called with step {step}, but all ranks agreed to stop after step {self._stop_step} "
                f"({self._last[1]}). Leave the loop when a reason is returned."
            )
        self._step = step
        reason = self._poll(f"step {step}", is_round=step % self._every == 0)
        if reason is not None and self._exchange is not None:
            self._stop_step = step
        return reason

    def between_steps(self) -> str | None:
        """Return the reason why all ranks stop, or None; one round, such as before a batch of an evaluation.

        All ranks must call it equally often between the same steps. A reason is returned again by each further call,
        and by the call after the next step.

        Raises:
            StopSetupError: the watcher is a `SignalWatcher` that was never entered.
            Rank0TimeoutError: rank 0 has not ended the previous round in time.
        """
        after = "" if self._step is None else f" after step {self._step}"
        return self._poll(f"a round of its evaluation{after}", is_round=True)

    def close(self) -> None:
        """Publish the last decision, and end the thread of `in_background`. Call it on each rank at the end."""
        if self._exchange is not None:
            self._exchange.close()

    def _local_request(self) -> str | None:
        signal_name = self._watcher.received
        return None if signal_name is None else f"{signal_name} on rank {self._rank}"

    def _send_request(self, exchange: Exchange) -> None:
        request = self._local_request()
        if request is not None and not self._request_sent:
            exchange.send_request(request)
            self._request_sent = True

    def _poll(self, label: str, *, is_round: bool) -> str | None:
        if self._exchange is None:
            return self._local_request()
        if self._last is not None and self._round >= self._last[0]:
            return self._last[1]
        # In each step, not only in rounds, so that rank 0 finds the request at the next one.
        if self._rank != 0:
            self._send_request(self._exchange)
        if not is_round:
            return None
        self._round += 1
        if self._rank == 0:
            self._decide(self._exchange)
        else:
            self._follow(self._exchange, label)
        self._label = label
        return None if self._last is None or self._round < self._last[0] else self._last[1]

    def _decide(self, exchange: Exchange) -> None:
        """Publish this round, and the last round as soon as there is a stop request. For rank 0."""
        if self._last is None:
            request = self._local_request() or exchange.remote_request()
            self._last = None if request is None else (self._round + 1, request)
            exchange.publish(self._round, self._last)

    def _follow(self, exchange: Exchange, label: str) -> None:
        """Read the decision of the previous round, if there is one. For all ranks except 0."""
        if self._round > 1 and self._last is None:
            try:
                self._last = exchange.read(self._round - 1)
            except TimeoutError as error:
                raise Rank0TimeoutError(
                    f"AgreedStop: rank {self._rank} has ended {label}, but rank 0 has not ended {self._label} within "
                    f"{self._timeout_seconds} s; it hangs or has died. Check its log."
                ) from error
        if self._last is None:
            exchange.expect(self._round)
