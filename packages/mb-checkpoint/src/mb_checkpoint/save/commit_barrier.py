"""Barrier without a collective: all ranks act on the outcome of a background save at the same poll.

1. Each rank writes the result of its writer to the store of the process group (`report`).
2. Rank 0 reads the results of all ranks, commits, and fixes the *next* poll as the one at which every rank acts. It
   acts one poll late because a faster rank may already have passed the current one.
3. After each of its polls, rank 0 publishes the number of the poll and the decision, if any.
4. At poll p, another rank first reads the decision of poll p - 1. Rank 0 published it a full training step ago if the
   steps keep the ranks together; otherwise the rank waits for it. It then knows whether to act at p.

No bound on the drift between ranks is assumed.
"""

import json
import time
from collections.abc import Callable
from typing import Protocol


class KeyValueStore(Protocol):
    """Key-value store that all ranks share; `torch.distributed.Store` matches."""

    def set(self, key: str, value: str, /) -> None:
        """Write a value; it is visible to all ranks when this returns."""

    def get(self, key: str, /) -> bytes:
        """Read an existing value."""

    def check(self, keys: list[str], /) -> bool:
        """Return whether all keys exist."""

    def delete_key(self, key: str, /) -> bool:
        """Remove a key."""


class RankZeroTimeoutError(TimeoutError):
    """Rank 0 has not polled in time, although this rank has polled again."""


class CommitBarrier:
    """Barrier over the polls of one background save, which every rank counts.

    Args:
        store: Store that the ranks share; None for a single rank.
        rank: Rank of this process.
        world_size: Number of ranks.
        name: Name of this save, unique within a run.
        timeout_seconds: Time to wait for rank 0.
        clock: Monotonic clock in seconds.
        sleep: Function that waits for a number of seconds.
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
        self._poll = 0
        self._decision: tuple[int, str] | None = None

    def report(self, failure: str) -> None:
        """Report to rank 0 that this rank is done; empty on success, else the reason of the failure."""
        if self._store is None:
            self._local_report = failure
        else:
            self._store.set(self._keys[self._rank], failure)

    def reports(self) -> list[str] | None:
        """Return the reports of all ranks, by rank, once; None while one is missing. For rank 0."""
        if self._store is None:
            return None if self._local_report is None else [self._local_report]
        if not self._store.check(self._keys):
            return None
        found = [self._store.get(key).decode() for key in self._keys]
        for key in self._keys:
            self._store.delete_key(key)
        return found

    def decide(self, outcome: str | None) -> str | None:
        """End this poll; rank 0 passes the outcome once it is known. Return it at the poll at which all ranks act.

        Raises:
            RankZeroTimeoutError: Rank 0 did not end the previous poll in time.
        """
        self._poll += 1
        if self._store is None:
            return outcome
        if self._rank == 0:
            if self._decision is None:
                self._decision = None if outcome is None else (self._poll + 1, outcome)
                self._store.set(self._decided_key, json.dumps([self._poll, self._decision]))
                return None
        elif self._decision is None and self._poll > 1:
            self._decision = self._wait_for(self._store, self._poll - 1)
        return self._decision[1] if self._decision is not None and self._poll >= self._decision[0] else None

    def _wait_for(self, store: KeyValueStore, wanted: int) -> tuple[int, str] | None:
        begin, pause = self._clock(), 0.0005
        while True:
            if store.check([self._decided_key]):
                decided, decision = json.loads(store.get(self._decided_key))
                if decided >= wanted:
                    return None if decision is None else (int(decision[0]), str(decision[1]))
            if self._clock() - begin > self._timeout_seconds:
                raise RankZeroTimeoutError(
                    f"checkpoint: rank {self._rank} is at poll {self._poll}, and rank 0 has not reached poll "
                    f"{wanted} within {self._timeout_seconds:g} s: rank 0 hangs or has died. Check its log."
                )
            self._sleep(pause)
            pause = min(2 * pause, 0.05)
