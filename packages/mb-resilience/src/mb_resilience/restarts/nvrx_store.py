"""Store of NVRx's wrapper, on a server that outlives the ranks. Imports NVRx and torch."""

import time
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from nvidia_resiliency_ext.inprocess.store import StoreMixin
from torch.distributed import DistStoreError, PrefixStore, Store  # type: ignore[attr-defined]

from mb_resilience.restarts.arguments import Rendezvous
from mb_resilience.restarts.store import STORE_TIMEOUT, connect

NVRX = "nvrx"
"""Prefix of the keys of NVRx's wrapper."""
POLL_SECONDS = 0.05
"""Interval at which a waiting thread checks its keys."""
MAX_KEYS = 512
"""Keys of one request: the server of torch's stores takes a time that grows with the square of their number."""


class SharedStore(Store, StoreMixin):  # type: ignore[misc]  # NVRx has no types
    """Connection to the store that all attempts share; NVRx's own store is served by rank 0, whose death ends the run.

    Waiting polls the keys. torch's stores hold a lock while they wait, so that the main thread and the one that waits
    for interruptions would block each other, and they log a warning for each wait that times out.

    Args:
        meeting: address of the store.
    """

    def __init__(self, meeting: Rendezvous) -> None:
        super().__init__()
        self._store: Any = PrefixStore(NVRX, connect(meeting))  # torch does not declare all of its methods
        self._critical = (0,) if meeting.owner == "rank 0" else ()

    @property
    def critical_ranks(self) -> tuple[int, ...]:
        """Initial ranks whose process serves the store."""
        return self._critical

    def get_initial_ranks(self, ranks: Iterable[int]) -> list[int]:
        """Return the initial ranks of ranks. NVRx 0.3.0 returns bytes, which its barriers cannot read."""
        return [
            int(value) for value in self.multi_get([self.INITIAL_RANK.format(rank=rank) for rank in ranks])
        ]

    def wait(self, keys: list[str], timeout: timedelta = STORE_TIMEOUT) -> None:
        """Wait until all keys are set.

        Raises:
            DistStoreError: they are not set within `timeout`.
        """
        deadline = time.monotonic() + timeout.total_seconds()
        for part in _parts(keys):  # a key that is set is not requested again
            while not self._store.check(part):
                if time.monotonic() >= deadline:
                    raise DistStoreError(f"{part}: not set within {timeout}")
                time.sleep(min(POLL_SECONDS, timeout.total_seconds()))

    def set(self, key: str, value: str | bytes) -> None:
        """Set a key."""
        self._store.set(key, value)

    def get(self, key: str) -> bytes:
        """Return the value of a key, and wait for it if it is not set."""
        self.wait([key])
        return bytes(self._store.get(key))

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """Return the values of keys, and wait for those that are not set."""
        self.wait(keys)
        return [bytes(value) for part in _parts(keys) for value in self._store.multi_get(part)]

    def add(self, key: str, number: int) -> int:
        """Add to a counter, and return its new value."""
        return int(self._store.add(key, number))

    def append(self, key: str, value: str | bytes) -> None:
        """Append to the value of a key."""
        self._store.append(key, value)

    def check(self, keys: list[str]) -> bool:
        """Return whether all keys are set."""
        return all(self._store.check(part) for part in _parts(keys))

    def has_extended_api(self) -> bool:
        """Return True: `append` and `multi_get` are supported."""
        return True


def _parts(keys: list[str]) -> list[list[str]]:
    return [keys[first : first + MAX_KEYS] for first in range(0, len(keys), MAX_KEYS)]
