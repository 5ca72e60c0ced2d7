"""Barrier without a collective: all ranks act on the outcome of a background save at the same poll.

1. Each rank that is done adds 1 to a counter in the store of the process group (`report`); a failure has a key of its
   own. Rank 0 reads the counter at each poll (`failures`) and commits when it has reached the number of ranks.
2. Only some polls count, the *rounds*: every poll at first, and later those whose number has grown by a quarter
   (`next_round`), so that a save that takes many steps costs each rank a few reads instead of one per step.
3. At a round, rank 0 fixes the *next* round as the one at which every rank acts once it knows the outcome. It acts one
   round late because a faster rank may already have passed the current one. It then publishes the number of the round
   and the decision, if any.
4. At a round, another rank first reads the decision of the previous round. Rank 0 published it a full training step ago
   if the steps keep the ranks together; otherwise the rank waits for it. It then knows whether to act at this round.

A poll that blocks until there is an outcome needs no number: every rank acts at it (`decide_now`). No bound on the
drift between ranks is assumed.
"""

import json
import time
from collections.abc import Callable
from typing import Any, Protocol

MAX_FAILURES = 16
"""Number of failures that rank 0 reads; a failure that all ranks have, as a full disk, needs no more."""


class KeyValueStore(Protocol):
    """Key-value store that all ranks share; `torch.distributed.Store` matches."""

    def set(self, key: str, value: str, /) -> None:
        """Write a value; it is visible to all ranks when this returns."""

    def get(self, key: str, /) -> bytes:
        """Read an existing value."""

    def check(self, keys: list[str], /) -> bool:
        """Return whether all keys exist."""

    def add(self, key: str, amount: int, /) -> int:
        """Add to a counter, which is 0 at first, and return its new value."""

    def delete_key(self, key: str, /) -> bool:
        """Remove a key."""


class RankZeroTimeoutError(TimeoutError):
    """Rank 0 has not polled in time, although this rank has polled again."""


def next_round(number: int) -> int:
    """Return the poll of the round after the one at a poll: 1 to 8, then 10, 12, 15, 18, 22, ..."""
    return number + max(1, number // 4)


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
        self._world_size = world_size
        prefix = f"mb_checkpoint/{name}"
        self._done_key, self._failed_key, self._decided_key = (
            f"{prefix}/{key}" for key in ("done", "failed", "decided")
        )
        self._timeout_seconds = timeout_seconds
        self._clock = clock
        self._sleep = sleep
        self._local_report: str | None = None
        self._poll = 0
        self._round, self._next_round = 0, 1
        self._published = 0
        self._outcome: str | None = None
        self._decision: tuple[int, str] | None = None
        self._collected = False
        self._decided_seen = False
        self._newest: tuple[float, Any] | None = None

    def report(self, failure: str) -> None:
        """Report to rank 0 that this rank is done, once; empty on success, else the reason of the failure."""
        if self._store is None:
            self._local_report = failure
            return
        if failure:  # before the counter: rank 0 reads the failures when all ranks are done
            number = self._store.add(self._failed_key, 1)
            self._store.set(f"{self._failed_key}/{number}", json.dumps([self._rank, failure]))
        self._store.add(self._done_key, 1)

    def failures(self) -> list[str] | None:
        """Return the failures of all ranks, by rank, once; None while a rank is not done. For rank 0."""
        if self._store is None:
            if self._local_report is None:
                return None
            return [f"rank 0: {self._local_report}"] if self._local_report else []
        # Adding 0 reads the counter; `get` would wait for a counter that no rank has increased yet.
        if self._collected or self._store.add(self._done_key, 0) < self._world_size:
            return None
        self._collected = True
        number = self._store.add(self._failed_key, 0)
        keys = [f"{self._failed_key}/{index}" for index in range(1, min(number, MAX_FAILURES) + 1)]
        failures = sorted(json.loads(self._store.get(key)) for key in keys)
        # Each save has its own keys: they would fill the store of a long run. All ranks have reported by now.
        for key in (self._done_key, self._failed_key, *keys):
            self._store.delete_key(key)
        more = [f"and {number - MAX_FAILURES} other ranks"] if number > MAX_FAILURES else []
        return [f"rank {rank}: {failure}" for rank, failure in failures] + more

    def decide(self, outcome: str | None) -> str | None:
        """End this poll; rank 0 passes the outcome, once. Return it at the poll at which all ranks act.

        Raises:
            RankZeroTimeoutError: Rank 0 did not end the previous round in time.
        """
        self._poll += 1
        if self._store is None:
            return outcome
        self._outcome = outcome if self._outcome is None else self._outcome  # until the next round
        if self._poll < self._next_round:
            return None
        before, self._round = self._round, self._poll
        self._next_round = next_round(self._poll)
        if self._rank == 0:
            if self._decision is None:
                self._decision = None if self._outcome is None else (self._next_round, self._outcome)
                self._publish(self._store)
        elif self._decision is None and before:
            self._decision = self._wait_for(self._store, before)
        is_due = self._decision is not None and self._poll >= self._decision[0]
        return self._decision[1] if is_due and self._decision is not None else None

    def decide_now(self, outcome: str | None) -> str | None:
        """Return the outcome once rank 0 has passed it, for a poll that calls this on all ranks until it is known.

        Raises:
            RankZeroTimeoutError: Rank 0 has not called this, or `decide`, for too long.
        """
        if self._store is None:
            return outcome
        if self._decision is not None:
            return self._decision[1]
        self._outcome = outcome if self._outcome is None else self._outcome
        if self._rank == 0:
            self._decision = None if self._outcome is None else (self._round, self._outcome)
            self._publish(self._store)
        else:
            newest = self._read(self._store)
            self._decision = None if newest is None else newest[1]
            if self._newest is None or self._newest[1] != newest:
                self._newest = self._clock(), newest
            elif self._clock() - self._newest[0] > self._timeout_seconds:
                raise self._timed_out("waits for the end of a save", "polled")
        return None if self._decision is None else self._decision[1]

    def _publish(self, store: KeyValueStore) -> None:
        self._published += 1  # shows a rank that blocks that rank 0 is alive
        store.set(self._decided_key, json.dumps([self._round, self._decision, self._published]))

    def _read(self, store: KeyValueStore) -> tuple[int, tuple[int, str] | None, int] | None:
        """Return the newest round, decision and number of rank 0; None before the first one."""
        # `get` waits for a key that does not exist, up to the timeout of the store. Once it exists, it stays.
        self._decided_seen = self._decided_seen or store.check([self._decided_key])
        if not self._decided_seen:
            return None
        decided, decision, number = json.loads(store.get(self._decided_key))
        return decided, None if decision is None else (int(decision[0]), str(decision[1])), number

    def _wait_for(self, store: KeyValueStore, wanted: int) -> tuple[int, str] | None:
        begin, pause = self._clock(), 0.0005
        while True:
            newest = self._read(store)
            if newest is not None and newest[0] >= wanted:
                return newest[1]
            if self._clock() - begin > self._timeout_seconds:
                raise self._timed_out(f"is at poll {self._poll}", f"reached poll {wanted}")
            self._sleep(pause)
            pause = min(2 * pause, 0.05)

    def _timed_out(self, own: str, expected: str) -> RankZeroTimeoutError:
        return RankZeroTimeoutError(
            f"checkpoint: rank {self._rank} {own}, and rank 0 has not {expected} within {self._timeout_seconds:g} s: "
            "rank 0 hangs or has died. Check its log."
        )
