"""Exchange of stop requests and of rank 0's decisions over a store, for `AgreedStop`. No torch.

`DirectExchange` accesses the store in each call. `BackgroundExchange` leaves that to a thread: rank 0 passes its
decision to the thread, and another rank requests the next decision from its thread one round before it needs it. A call
then costs no round trip, unless the decision has not arrived yet.
"""

import threading
import time
from collections.abc import Callable
from typing import Protocol

Decision = tuple[int, str]
"""Last round, and the reason of the stop."""
FIRST_PAUSE_SECONDS = 0.001
LONGEST_PAUSE_SECONDS = 0.1
"""Pauses between two reads of a decision that has not been made yet; each is twice the previous one."""
CLOSE_SECONDS = 10.0
"""Time for a thread to publish the last decision when its run ends."""


class KeyValueStore(Protocol):
    """Key-value store shared by all ranks, such as `torch.distributed.Store`.

    Values are visible to all ranks as soon as `set` returns.
    """

    def set(self, key: str, value: str, /) -> None:
        """Write a value."""

    def get(self, key: str, /) -> bytes:
        """Return a value; block until the key exists."""

    def check(self, keys: list[str], /) -> bool:
        """Return whether all keys exist."""


class Exchange(Protocol):
    """Exchange between rank 0, which decides, and the others."""

    def send_request(self, request: str) -> None:
        """Send a stop request to rank 0."""

    def remote_request(self) -> str | None:
        """Return a stop request of another rank, if there is one. For rank 0."""

    def publish(self, decided: int, last: Decision | None) -> None:
        """Publish that a round is decided, with the last round if it is fixed. For rank 0."""

    def expect(self, wanted: int) -> None:
        """Announce that the decision of a round will be read. For all ranks except 0."""

    def read(self, wanted: int) -> Decision | None:
        """Return the last round once round `wanted` is decided; None if it is not fixed. For all ranks except 0.

        Raises:
            TimeoutError: The round has not been decided in time.
        """

    def close(self) -> None:
        """Publish what is outstanding."""


class DirectExchange:
    """Exchange in which each call accesses the store.

    Args:
        store: store shared by all ranks.
        prefix: beginning of the keys.
        timeout_seconds: longest wait for a decision, in seconds.
        clock: returns the time in seconds.
        sleep: sleeps for a number of seconds.
    """

    def __init__(
        self,
        store: KeyValueStore,
        *,
        prefix: str,
        timeout_seconds: float = 600.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._store = store
        self._request_key, self._decided_key = f"{prefix}/request", f"{prefix}/decided"
        self._decision_seen = False
        self.timeout_seconds = timeout_seconds
        self._clock, self._sleep = clock, sleep

    def send_request(self, request: str) -> None:
        """Write the request to the store."""
        self._store.set(self._request_key, request)

    def remote_request(self) -> str | None:
        """Read a request from the store."""
        if not self._store.check([self._request_key]):
            return None
        return self._store.get(self._request_key).decode()

    def publish(self, decided: int, last: Decision | None) -> None:
        """Write the decision to the store."""
        self._store.set(self._decided_key, _encode_decision(decided, last))

    def expect(self, wanted: int) -> None:
        """Do nothing: `read` reads."""

    def newest(self) -> tuple[int, Decision | None] | None:
        """Return the newest decided round with the last round, without waiting; None before the first decision."""
        # Before rank 0's first round the key does not exist, and `get` would block by the store's own timeout,
        # which is not `timeout_seconds`. Later one `get` suffices, which saves a round trip per step.
        self._decision_seen = self._decision_seen or self._store.check([self._decided_key])
        return _decode_decision(self._store.get(self._decided_key)) if self._decision_seen else None

    def read(self, wanted: int) -> Decision | None:
        """Read the decision, in intervals until it is there."""
        begin, pause = self._clock(), FIRST_PAUSE_SECONDS
        while True:
            newest = self.newest()
            if newest is not None and newest[0] >= wanted:
                return newest[1]
            if self._clock() - begin > self.timeout_seconds:
                raise TimeoutError
            self._sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def close(self) -> None:
        """Do nothing: everything is published at once."""


class BackgroundExchange:
    """Exchange in which a thread accesses the store, through a connection that no other thread uses meanwhile.

    The calls only store and read attributes: waking the thread would cost a good part of a round trip. The thread looks
    at them several times per step, so that a decision reaches the other ranks within a step. It starts with the first
    decision. An error of the store is raised by the next call.

    Args:
        direct: the exchange whose calls the thread makes.
    """

    def __init__(self, direct: DirectExchange) -> None:
        self._direct = direct
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()
        self._arrived = threading.Condition()
        self._is_awaited = False
        self._error: Exception | None = None
        # written by the calls
        self._decision: tuple[int, Decision | None] | None = None
        self._wanted = -1
        # written by the thread
        self._published: tuple[int, Decision | None] | None = None
        self._request: str | None = None
        self._decided = -1
        self._last: Decision | None = None

    def send_request(self, request: str) -> None:
        """Write the request to the store, in this call: there is at most one in a run."""
        self._direct.send_request(request)

    def remote_request(self) -> str | None:
        """Return the request that the thread found after it published the previous decision."""
        return self._request

    def publish(self, decided: int, last: Decision | None) -> None:
        """Pass the decision to the thread. A newer decision replaces one that is not published yet."""
        self._decision = decided, last
        if self._thread is None or self._error is not None:
            self._start(self._publish_newest)

    def expect(self, wanted: int) -> None:
        """Request a decision from the thread."""
        self._wanted = wanted
        if self._thread is None or self._error is not None:
            self._start(self._read_wanted)

    def read(self, wanted: int) -> Decision | None:
        """Return the decision that the thread has read, or wait for it."""
        if self._decided < wanted or self._error is not None:
            with self._arrived:
                self._is_awaited = True
                arrived = self._arrived.wait_for(
                    lambda: self._decided >= wanted or self._error is not None, self._direct.timeout_seconds
                )
                self._is_awaited = False
            if self._error is not None:
                raise self._error
            if not arrived:
                raise TimeoutError
        return self._last

    def close(self) -> None:
        """Wait until the last decision is published, and end the thread."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join(CLOSE_SECONDS)

    def _start(self, work: Callable[[], bool]) -> None:
        if self._error is not None:
            raise self._error
        self._thread = threading.Thread(
            target=self._run, args=(work,), name="mb_resilience stop", daemon=True
        )
        self._thread.start()

    def _run(self, work: Callable[[], bool]) -> None:
        pause, done, awaited_pause = 0.0, time.monotonic(), FIRST_PAUSE_SECONDS
        try:
            while True:
                # the pauses of a call that waits grow: all ranks may wait for rank 0, and each read loads the store
                closing = self._closing.wait(awaited_pause if self._is_awaited else pause)
                awaited_pause = (
                    min(2 * awaited_pause, LONGEST_PAUSE_SECONDS) if self._is_awaited else FIRST_PAUSE_SECONDS
                )
                if work():
                    now = time.monotonic()
                    pause = min(max((now - done) / 5, FIRST_PAUSE_SECONDS), LONGEST_PAUSE_SECONDS)
                    done = now
                if closing:
                    return
        except Exception as error:  # noqa: BLE001 - of any store, such as a lost connection; raised by the next call
            with self._arrived:
                self._error = error
                self._arrived.notify_all()

    def _publish_newest(self) -> bool:
        """Publish the newest decision, and return whether there was one."""
        decision = self._decision
        if decision is None or decision is self._published:
            return False
        # Published before the request is read: the other ranks wait for the decision, and none for the request.
        self._direct.publish(*decision)
        self._published = decision
        if self._request is None and decision[1] is None:
            self._request = self._direct.remote_request()
        return True

    def _read_wanted(self) -> bool:
        """Read the decision that is wanted, and return whether it was there."""
        newest = self._direct.newest() if self._wanted > self._decided else None
        if newest is None or newest[0] < self._wanted:
            return False
        with self._arrived:
            self._last = newest[1]
            self._decided = newest[0]
            self._arrived.notify_all()
        return True


def _encode_decision(decided: int, last: Decision | None) -> str:
    return f"{decided}" if last is None else f"{decided} {last[0]} {last[1]}"


def _decode_decision(value: bytes) -> tuple[int, Decision | None]:
    decided, *rest = value.decode().split(" ", 2)
    return int(decided), (int(rest[0]), rest[1]) if rest else None
