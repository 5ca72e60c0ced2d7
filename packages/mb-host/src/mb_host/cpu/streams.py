"""CUDA streams and events on the CPU, where work completes in program order."""

import time
from contextlib import nullcontext
from types import TracebackType
from typing import Any

import torch

from mb_host.cpu.device import HOST, do_nothing


class HostEvent:
    """Substitute for `torch.cuda.Event` that completes when it is recorded; times are wall-clock times."""

    def __init__(self, *_args: object, **_kwargs: object) -> None:
        self._seconds: float | None = None

    def record(self, *_args: object, **_kwargs: object) -> None:
        """Record the time."""
        self._seconds = time.perf_counter()

    def wait(self, *_args: object, **_kwargs: object) -> None:
        """Return immediately."""

    def synchronize(self, *_args: object, **_kwargs: object) -> None:
        """Return immediately."""

    def query(self, *_args: object, **_kwargs: object) -> bool:
        """Return True: no work is pending."""
        return True

    def elapsed_time(self, end: "HostEvent", *_args: object, **_kwargs: object) -> float:
        """Return the milliseconds from this event to `end`.

        Raises:
            RuntimeError: One of the events was not recorded.
        """
        if self._seconds is None or end._seconds is None:
            raise RuntimeError(
                "HostEvent.elapsed_time: one of the events was not recorded, so it has no time. "
                "Call record() on both first."
            )
        return (end._seconds - self._seconds) * 1e3


class HostStream:
    """Substitute for `torch.cuda.Stream` whose work is complete when the issuing call returns."""

    device = HOST
    device_index = 0
    cuda_stream = 0
    stream_id = 0

    def __init__(self, *_args: object, **_kwargs: object) -> None:
        pass

    @staticmethod
    def priority_range(*_args: object, **_kwargs: object) -> tuple[int, int]:
        """Return the only priority."""
        return 0, 0

    def record_event(self, event: HostEvent | None = None, *_args: object, **_kwargs: object) -> HostEvent:
        """Record `event`, or a new one, and return it."""
        event = event or HostEvent()
        event.record(self)
        return event

    def wait_event(self, *_args: object, **_kwargs: object) -> None:
        """Return immediately."""

    def wait_stream(self, *_args: object, **_kwargs: object) -> None:
        """Return immediately."""

    def synchronize(self, *_args: object, **_kwargs: object) -> None:
        """Return immediately."""

    def query(self, *_args: object, **_kwargs: object) -> bool:
        """Return True: no work is pending."""
        return True

    def __enter__(self) -> "HostStream":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


def replace_streams() -> None:
    """Replace streams of `torch.cuda` by `HostStream`, events by `HostEvent`, and nvtx ranges by no-ops."""
    cuda: Any = torch.cuda
    the_stream = HostStream()
    cuda.Stream = HostStream
    cuda.Event = HostEvent
    cuda.current_stream = lambda *_args, **_kwargs: the_stream
    cuda.default_stream = lambda *_args, **_kwargs: the_stream
    cuda.stream = lambda stream, *_args, **_kwargs: nullcontext(stream)
    cuda.set_stream = do_nothing()
    cuda.is_current_stream_capturing = lambda *_args, **_kwargs: False
    cuda.nvtx.range_push = do_nothing()
    cuda.nvtx.range_pop = do_nothing()
