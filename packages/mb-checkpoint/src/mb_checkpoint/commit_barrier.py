"""All ranks act on the outcome of a background save at the same poll, without a collective.

Rank 0 learns from the store that all ranks are done, commits, and fixes the *next* round of polls as the one at which
everybody acts. It publishes "round p is decided" after each of its polls. A rank at round p first waits until round
p - 1 is decided, which it has been for a whole step where the steps keep the ranks together; so at round p every rank
knows whether p is the round to act. Nothing is assumed of how far the ranks drift apart.
"""

import json
import time
from collections.abc import Callable
from typing import Protocol


class KeyValueStore(Protocol):
    """A store that all ranks share; `torch.distributed.Store` fits."""

    def set(self, key: str, value: str, /) -> None:
        """Write a value; all ranks see it when this returns."""

    def get(self, key: str, /) -> bytes:
        """Read a value that is there."""

    def check(self, keys: list[str], /) -> bool:
        """Say whether all the keys are there."""

    def delete_key(self, key: str, /) -> bool:
        """Remove a key."""


class RankZeroTimeoutError(TimeoutError):
    """Rank 0 has not polled, although this rank has polled again."""


class CommitBarrier:
    """The polls of one background save, counted alike on all ranks.

    Args:
        store: Shared by the ranks; None: there is one rank.
        rank: Of this process.
        world_size: Number of ranks.
        name: Of this save; no two saves of a run share it.
        timeout_seconds: How long to wait for rank 0.
        clock: Seconds from any start.
        sleep: Waits so many seconds.
    """

    def __init__(
        self,
        store: KeyValueStore | None,
        *,
        rank: int,
        world_size: int,
        name: str,
        timeout_seconds: float = 600.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._store = store
        self._rank = rank
        self._keys = [f"mb_checkpoint/{name}/rank{each}" for each in range(world_size)]
        self._decided_key = f"mb_checkpoint/{name}/decided"
        self._timeout_seconds = timeout_seconds
        self._clock = clock
        self._sleep = sleep
        self._local_report: str | None = None
        self._round = 0
        self._decision: tuple[int, str] | None = None

    def report(self, words: str) -> None:
        """Tell rank 0 that this rank is done; no words: it went well, else why it did not."""
        if self._store is None:
            self._local_report = words
        else:
            self._store.set(self._keys[self._rank], words)

    def reports(self) -> list[str] | None:
        """Return what all ranks reported, by rank, once; None while one is missing. For rank 0."""
        if self._store is None:
            return None if self._local_report is None else [self._local_report]
        if not self._store.check(self._keys):
            return None
        found = [self._store.get(key).decode() for key in self._keys]
        for key in self._keys:
            self._store.delete_key(key)
        return found

    def decide(self, outcome: str | None) -> str | None:
        """End this round: rank 0 passes the outcome once it knows it; return it where all ranks act on it.

        Raises:
            RankZeroTimeoutError: Rank 0 did not end the round before in time.
        """
        self._round += 1
        if self._store is None:
            return outcome
        if self._rank == 0:
            if self._decision is None:
                self._decision = None if outcome is None else (self._round + 1, outcome)
                self._store.set(self._decided_key, json.dumps([self._round, self._decision]))
                return None
        elif self._decision is None and self._round > 1:
            self._decision = self._wait_for(self._store, self._round - 1)
        return self._decision[1] if self._decision is not None and self._round >= self._decision[0] else None

    def _wait_for(self, store: KeyValueStore, wanted: int) -> tuple[int, str] | None:
        begin, pause = self._clock(), 0.0005
        while True:
            if store.check([self._decided_key]):
                decided, decision = json.loads(store.get(self._decided_key))
                if decided >= wanted:
                    return None if decision is None else (int(decision[0]), str(decision[1]))
            if self._clock() - begin > self._timeout_seconds:
                raise RankZeroTimeoutError(
                    f"checkpoint: rank {self._rank} polls for the {self._round}th time, and rank 0 has not polled for "
                    f"the {wanted}th time within {self._timeout_seconds:g} s; it hangs or died. Look at its log."
                )
            self._sleep(pause)
            pause = min(2 * pause, 0.05)
