"""All ranks stop after the same step, though only one of them was told to. No collective, no torch.

How it works. Rank 0 decides, all others ask. Count only the steps at which this is done, the *rounds*: every step, or
every n-th. At the end of round p, rank 0 looks whether any rank has a wish; if so, it fixes the next round, p + 1, as
the last. Only then does it publish "round p is decided" together with that decision.

At the end of round t, every other rank waits until round t - 1 is published, and stops if round t was fixed as the
last. A rank that ends round t thus knows all decisions that can concern round t, because a decision made at round p
concerns p + 1 only. So either every rank stops after round t or none does, however far the ranks drift apart: nothing
is assumed of the training step. In the usual case the wait is no wait: a step ends with collectives that rank 0 took
part in, so rank 0 has long ended the step before.

The wait cannot deadlock: rank 0 needs nothing for round t - 1 that a rank at the end of round t has not contributed.
Nor can a wish get lost: it is written to the store at the end of the step in which it came, and rank 0 looks in every
round. Where the steps keep the ranks together, the stop comes at most two rounds after the one with the signal.
"""

import time
from collections.abc import Callable
from typing import Protocol


class Watcher(Protocol):
    """Who notices a wish to stop; `SignalWatcher` fits."""

    @property
    def received(self) -> str | None:
        """What was noticed, in a word; None so far."""


class KeyValueStore(Protocol):
    """A store that all ranks share; `torch.distributed.Store` fits.

    Values are visible to all ranks as soon as `set` returns.
    """

    def set(self, key: str, value: str, /) -> None:
        """Write a value."""

    def get(self, key: str, /) -> bytes:
        """Read a value; wait until the key exists."""

    def check(self, keys: list[str], /) -> bool:
        """Say whether all the keys exist."""


class StopSetupError(ValueError):
    """An agreed stop was set up in a way that cannot agree."""


class StopOrderError(RuntimeError):
    """The steps asked about are not those of one run."""


class Rank0TimeoutError(TimeoutError):
    """Rank 0 has not ended a step that this rank ended long ago."""


class AgreedStop:
    """Called with each step's number when the step is done; returns why to stop, or None. Alike on all ranks.

    Every rank must call it for the same steps, each of them, in order. The text names the signal and the rank that got
    it, such as "SIGTERM on rank 1". With several ranks, the first round of a run is never the last one.

    The store must outlive the last question of every rank: end a run with something that all ranks take part in.

    Cost: at each round one round trip to the store, on rank 0 two, and one more at the first; nothing in between.

    Args:
        watcher: notices the wish on this rank.
        store: shared by all ranks; needed when there are several.
        rank: of this process.
        world_size: number of ranks.
        attempt: name of this run of the ranks, the same on all of them and different after each restart, if the store
            outlives one. Keys of another attempt are not looked at.
        every: steps from round to round.
        timeout_seconds: how long to wait for rank 0.
        clock: seconds.
        sleep: waits so many seconds.

    Raises:
        StopSetupError: several ranks without a store, or numbers that make no sense.
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
        timeout_seconds: float = 600.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if not 0 <= rank < world_size or every < 1:
            raise StopSetupError(
                f"AgreedStop: rank={rank}, world_size={world_size}, every={every}; the rank must be one of the world "
                "and the rounds at least one step apart. Pass the numbers of the process group."
            )
        if world_size > 1 and store is None:
            raise StopSetupError(
                f"AgreedStop: world_size={world_size} without a store, so the ranks could not agree. "
                "Pass a store that all ranks share, such as the torch.distributed.TCPStore of the run."
            )
        self._watcher = watcher
        self._store = store
        self._rank = rank
        self._every = every
        self._timeout_seconds = timeout_seconds
        self._clock = clock
        self._sleep = sleep
        prefix = f"mb_resilience/stop/{attempt}"
        self._request_key, self._decided_key = f"{prefix}/wish", f"{prefix}/decided"
        self._published_request = False
        self._decision_seen = False
        self._step: int | None = None
        self._round: int | None = None
        self._last: tuple[int, str] | None = None

    def __call__(self, step: int) -> str | None:
        """Return why all ranks stop after this step, or None.

        Raises:
            StopOrderError: the step does not follow the one before, or lies beyond the agreed stop.
            Rank0TimeoutError: rank 0 did not end the round before this one in time.
        """
        if self._step is not None and step != self._step + 1:
            raise StopOrderError(
                f"AgreedStop: asked about step {step} after step {self._step}, but a stop is agreed for the round that "
                "follows, so none may be left out. Make a new AgreedStop, with another attempt, for another run."
            )
        self._step = step
        if self._store is None:
            return self._local_request()
        if self._rank != 0:
            self._publish_request(self._store)
        if step % self._every:
            return None
        decide = self._decide if self._rank == 0 else self._follow
        return decide(self._store, step // self._every)

    def _local_request(self) -> str | None:
        signal_name = self._watcher.received
        return None if signal_name is None else f"{signal_name} on rank {self._rank}"

    def _publish_request(self, store: KeyValueStore) -> None:
        request = self._local_request()
        if request is not None and not self._published_request:
            store.set(self._request_key, request)
            self._published_request = True

    def _decide(self, store: KeyValueStore, now: int) -> str | None:
        """Rank 0: publish this round, with the last round as soon as there is a wish."""
        if self._last is None:
            request = self._local_request()
            if request is None and store.check([self._request_key]):
                request = store.get(self._request_key).decode()
            self._last = None if request is None else (now + 1, request)
            store.set(self._decided_key, _encode_decision(now, self._last))
            return None
        return self._stop_at(now)

    def _follow(self, store: KeyValueStore, now: int) -> str | None:
        """Other ranks: learn what was decided at the round before, of which there is none at the first."""
        before, self._round = self._round, now
        if before is None:
            return None
        if self._last is None:
            self._last = self._wait_for_round(store, before)
        return self._stop_at(now)

    def _wait_for_round(self, store: KeyValueStore, requested: int) -> tuple[int, str] | None:
        begin, pause = self._clock(), 0.001
        while True:
            # The first time the key may not be there yet, and `get` would wait by the store's own time-out.
            self._decision_seen = self._decision_seen or store.check([self._decided_key])
            if self._decision_seen:
                decided, last = _decode_decision(store.get(self._decided_key))
                if decided >= requested:
                    return last
            if self._clock() - begin > self._timeout_seconds:
                raise Rank0TimeoutError(
                    f"AgreedStop: rank {self._rank} has ended step {self._step}, but rank 0 has not ended step "
                    f"{requested * self._every} within {self._timeout_seconds} s; it hangs or died. Look at its log."
                )
            self._sleep(pause)
            pause = min(2 * pause, 0.1)

    def _stop_at(self, now: int) -> str | None:
        if self._last is None or now < self._last[0]:
            return None
        if now > self._last[0]:
            raise StopOrderError(
                f"AgreedStop: asked about step {self._step}, but all ranks agreed to stop after step "
                f"{self._last[0] * self._every} ({self._last[1]}). Leave the loop when a text is returned."
            )
        return self._last[1]


def _encode_decision(decided: int, last: tuple[int, str] | None) -> str:
    return f"{decided}" if last is None else f"{decided} {last[0]} {last[1]}"


def _decode_decision(value: bytes) -> tuple[int, tuple[int, str] | None]:
    decided, *rest = value.decode().split(" ", 2)
    return int(decided), (int(rest[0]), rest[1]) if rest else None
