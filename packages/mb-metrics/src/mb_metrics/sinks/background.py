"""Background writer for a sink: a thread and a bounded queue decouple the training thread from the sink."""

import errno
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mb_metrics.recorder.record import Evaluation, LogInterval, MetricsRow
from mb_metrics.redact import hide_in_text
from mb_metrics.sinks.sink import FileSink, Sink, SinkFailure, StatusSink, sink_list, sink_name

_logger = logging.getLogger(__name__)
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}
"""Errors of a disk that does not recover within seconds: the end of a run does not wait for it."""
_PERMANENT = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)

CAPACITY = 200_000
"""Values that wait while a service is down: some 20 MB, 20,000 steps with ten metrics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _QueuedWrite:
    action: Callable[[], None]
    records: int
    """Steps, evaluations and files."""
    size: int
    """Part of the capacity that they take."""


class BackgroundSink:
    """Sink that writes to another sink from a thread, in order, through a bounded queue.

    An `OSError` of the sink (server down, disk full) is treated as transient: the record stays in the queue and is
    retried after `retry_seconds`, with exponential backoff up to `longest_retry_seconds`. Any other error discards
    the record. When the queue is full, the oldest records are dropped, but never the newest call. Dropped records are
    counted in `failures`; the start and the end of an outage, and the first drop, are logged as warnings.

    `close` waits until the queue is empty and the sink is closed, for at most `close_seconds`, and reports it if
    the sink is down; a record for which the disk is full is tried again only once. After that it counts
    the remaining records as dropped and abandons the daemon thread, which ends with the process.

    Args:
        sink: The wrapped sink; it is called from the thread only.
        capacity: Maximum length of the queue, in the unit `counts`; None: unbounded.
        counts: Unit of `capacity`: "values" of metrics, about 100 bytes each, of which a record has at least one, or
            "records" (steps, evaluations and files).
        close_seconds: Timeout of `close`, in seconds.
        retry_seconds: Delay before the first retry, in seconds.
        longest_retry_seconds: Maximum delay between retries, in seconds.
        clock: Monotonic clock, in seconds.

    Raises:
        TypeError: `sink` is not a sink.
        ValueError: `capacity` is not positive.
    """

    def __init__(
        self,
        sink: Sink,
        *,
        capacity: int | None = CAPACITY,
        counts: Literal["values", "records"] = "values",
        close_seconds: float = 10.0,
        retry_seconds: float = 1.0,
        longest_retry_seconds: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if capacity is not None and capacity <= 0:
            raise ValueError(
                f"BackgroundSink: capacity must be positive (capacity={capacity}). Every record would be dropped. Set "
                "it to 1 or more, or to None for an unbounded queue."
            )
        (self._sink,) = sink_list([sink])
        self._capacity, self._counts = capacity, counts
        self._close_seconds = close_seconds
        self._retry_seconds = retry_seconds
        self._longest_retry_seconds = longest_retry_seconds
        self._clock = clock
        self._failing = False  # whether the last record failed; used by the thread only
        # One condition for both directions: a new record wakes the thread; `close` and a full queue, which may drop the
        # record that is being retried, end the thread's wait. The sink itself is called without the lock, because a
        # call may take minutes and `write_rows` must not wait for it.
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        # Guarded by _changed:
        self._jobs: deque[_QueuedWrite] = deque()
        self._waiting = 0  # sizes of the jobs
        self._newest = 0  # size of the newest job that has records
        self._in_flight: _QueuedWrite | None = None
        self._retrying = False
        self._deadline: float | None = None
        self._errors = 0
        self._first: Exception | None = None
        self._dropped = 0

    @property
    def failures(self) -> tuple[SinkFailure, ...]:
        """Failures so far; empty if there are none."""
        with self._changed:
            if not self._errors and not self._dropped:
                return ()
            return (
                SinkFailure(sink=self._sink, count=self._errors, first=self._first, dropped=self._dropped),
            )

    def write_rows(self, rows: Sequence[MetricsRow]) -> None:
        """Queue the next steps."""
        self._queue(lambda: self._sink.write_rows(rows), *(len(row.values) for row in rows))

    def write_interval(self, interval: LogInterval) -> None:
        """Queue the summary of a log interval."""
        self._queue(lambda: self._sink.write_interval(interval))

    def write_evaluation(self, evaluation: Evaluation) -> None:
        """Queue an evaluation."""
        self._queue(lambda: self._sink.write_evaluation(evaluation), len(evaluation.values))

    def write_file(self, path: Path, name: str) -> None:
        """Queue a file, if the sink stores files."""
        sink = self._sink
        if isinstance(sink, FileSink):
            self._queue(lambda: sink.write_file(path, name), 1)

    def fail(self) -> None:
        """Queue the notification that an error ended the run, if the sink supports it."""
        sink = self._sink
        if isinstance(sink, StatusSink):
            self._queue(sink.fail)

    def close(self) -> None:
        """Wait until all records are written and the sink is closed, for at most `close_seconds`."""
        thread = self._queue(self._sink.close)
        with self._changed:
            self._deadline = self._clock() + self._close_seconds
            is_down = self._retrying
            self._changed.notify_all()
        if thread.ident is None:
            self._work()
            return
        if is_down:
            thread.join(min(1.0, self._close_seconds))
            if thread.is_alive():
                self._warn(
                    f"is down; the end of the run waits for it, for at most {self._close_seconds:.0f} s"
                )
        thread.join(self._close_seconds)
        with self._changed:
            if thread.is_alive():
                abandoned = [*self._jobs, *([self._in_flight] if self._in_flight else [])]
                self._dropped += sum(job.records for job in abandoned)
                self._jobs.clear()
                self._waiting = 0
                self._in_flight = None

    def _queue(self, action: Callable[[], None], *values: int) -> threading.Thread:
        """Queue a call of the sink with the number of values of each of its records."""
        size = sum(max(1, count) for count in values) if self._counts == "values" else len(values)
        with self._changed:
            self._jobs.append(_QueuedWrite(action=action, records=len(values), size=size))
            self._waiting += size
            self._newest = size or self._newest
            dropped = self._make_room()
            first_drop = dropped > 0 and not self._dropped
            self._dropped += dropped
            self._changed.notify_all()
            if self._thread is None:
                name = f"metrics to {sink_name(self._sink)}"
                self._thread = threading.Thread(target=self._work, name=name, daemon=True)
                with suppress(RuntimeError):
                    self._thread.start()  # no thread can start while the interpreter exits: `close` writes
            thread = self._thread
        if first_drop:
            self._warn("is too slow or down; the queue is full and the oldest records are dropped")
        return thread

    def _make_room(self) -> int:
        """Drop the oldest queued records and return their number.

        The record that is being retried is the oldest, so it goes first: keeping it would keep the queue blocked on
        the record that already failed.
        """
        dropped = 0
        while self._capacity is not None and self._waiting > max(self._capacity, self._newest):
            if self._retrying and self._in_flight is not None:
                dropped += self._in_flight.records
                self._in_flight = None
                continue
            oldest = self._jobs.popleft()
            self._waiting -= oldest.size
            dropped += oldest.records
        return dropped

    def _work(self) -> None:
        while (job := self._next()) is not None:
            self._execute(job)

    def _next(self) -> _QueuedWrite | None:
        with self._changed:
            self._in_flight = None
            while not self._jobs:
                if self._deadline is not None:
                    return None
                self._changed.wait()
            self._in_flight = self._jobs.popleft()
            self._waiting -= self._in_flight.size
            return self._in_flight

    def _execute(self, job: _QueuedWrite) -> None:
        delay = self._retry_seconds
        while True:
            try:
                job.action()
            except Exception as error:  # noqa: BLE001 - counted and logged; metrics must not end a training run
                transient = isinstance(error, OSError) and not isinstance(error, _PERMANENT)
                self._count(error, lost=0 if transient else job.records, retrying=transient)
                if not self._failing:
                    consequence = "records are queued and retried" if transient else "the record is lost"
                    self._warn(f"raised {hide_in_text(repr(error))}; {consequence}")
                self._failing = True
                is_full = isinstance(error, OSError) and error.errno in _FULL
                if not transient or not self._wait(delay, is_full=is_full):
                    return
                delay = min(2 * delay, self._longest_retry_seconds)
            else:
                # A write without records proves nothing: many sinks ignore summaries.
                if self._failing and job.records:
                    self._failing = False
                    self._warn("recovered; records are written again")
                return

    def _wait(self, seconds: float, *, is_full: bool) -> bool:
        """Wait before the next retry; return False if the timeout of `close` leaves no time for it.

        A full disk is not waited for at the end. `close` ends a wait that has begun before it.
        """
        with self._changed:
            is_closing = self._deadline is not None
            if self._deadline is not None:
                left = self._deadline - self._clock()
                if left <= 0 or is_full:
                    self._dropped += self._in_flight.records if self._in_flight else 0
                    self._in_flight, self._retrying = None, False
                    return False
                seconds = min(seconds, self._retry_seconds, left)
            self._changed.wait_for(
                lambda: self._in_flight is None or (self._deadline is not None and not is_closing), seconds
            )
            self._retrying = False
            return self._in_flight is not None

    def _count(self, error: Exception, *, lost: int, retrying: bool) -> None:
        """Count an error. With `retrying`, the current record becomes the first to be dropped from a full queue."""
        with self._changed:
            self._retrying = retrying
            self._errors += 1
            self._first = self._first or error
            if self._in_flight is not None:
                self._dropped += lost

    def _warn(self, message: str) -> None:
        _logger.warning("metrics: %s %s", sink_name(self._sink), message)
