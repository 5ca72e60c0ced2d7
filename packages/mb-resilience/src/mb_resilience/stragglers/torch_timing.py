"""CUDA timing, GPU telemetry, and communication between ranks for straggler detection. Needs torch."""

import socket
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar, cast

import torch
from torch import Tensor

from mb_resilience.stragglers.detection import HostStopwatch, Stopwatch
from mb_resilience.stragglers.report import UNITS

Known = TypeVar("Known")
Section = tuple[torch.cuda.Event, torch.cuda.Event, float]


def all_gather_row(row: Sequence[float], *, device: torch.device | str = "cpu") -> list[list[float]]:
    """Return the rows of numbers of all ranks, by rank. One collective over the default process group.

    The tensors of the collective are on `device`, with which it synchronizes. An `AllGatherRows`.
    """
    return cast("list[list[float]]", _gather(torch.tensor(row, dtype=torch.float64, device=device)).tolist())


LOCATION_BYTES = 256
"""Longest text of a host and device that ranks exchange."""


def broadcast_from_rank_0(known: Known) -> Known:
    """Return the object of rank 0; those of other ranks are ignored. One collective over the default process group."""
    box = [known]
    torch.distributed.broadcast_object_list(box, src=0)
    return box[0]


def gather_locations(device: torch.device) -> list[str]:
    """Return host and device of each rank of the default process group. Collective over it."""
    location = socket.gethostname()
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        location += f", GPU {index} ({torch.cuda.get_device_name(index)})"
    # not all_gather_object, which needs numpy
    text = location.encode()[:LOCATION_BYTES].ljust(LOCATION_BYTES, b"\0")
    own = torch.tensor(list(text), dtype=torch.uint8, device=device)
    rows = bytes(_gather(own).flatten().tolist())
    texts = (rows[begin : begin + LOCATION_BYTES] for begin in range(0, len(rows), LOCATION_BYTES))
    return [text.rstrip(b"\0").decode(errors="replace") for text in texts]


def _gather(row: Tensor) -> Tensor:
    """Return the rows of all ranks in one tensor, which one copy brings to the host."""
    rows = row.new_empty(torch.distributed.get_world_size() * row.numel())
    torch.distributed.all_gather_into_tensor(rows, row)
    return rows.view(-1, row.numel())


class CudaStopwatch:
    """Stopwatch for sections on a CUDA stream; a section counts with its host time if that is longer.

    Records two events on the current stream per section. Only `read` synchronizes with the device, up to the end of the
    last section. Events are reused as soon as the device has passed them.
    """

    def __init__(self) -> None:
        self._free: list[torch.cuda.Event] = []
        self._open: tuple[torch.cuda.Event, float] | None = None
        self._in_flight: deque[Section] = deque()
        self._seconds = 0.0

    def start(self) -> None:
        """Start a section on the current stream."""
        event = self._open[0] if self._open else self._event()
        event.record()
        self._open = event, time.perf_counter()

    def stop(self) -> None:
        """End the section on the current stream."""
        if self._open is None:
            return
        begin, began = self._open
        end = self._event()
        end.record()
        self._open = None
        self._in_flight.append((begin, end, time.perf_counter() - began))
        while self._in_flight and self._in_flight[0][1].query():  # type: ignore[no-untyped-call]
            self._settle()

    def read(self) -> float:
        """Return the seconds of all sections that ended, and reset to 0. Synchronizes with the end of the last one."""
        if self._in_flight:
            self._in_flight[-1][1].synchronize()
        while self._in_flight:
            self._settle()
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def _event(self) -> torch.cuda.Event:
        return self._free.pop() if self._free else torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]

    def _settle(self) -> None:
        begin, end, on_host = self._in_flight.popleft()
        self._seconds += max(begin.elapsed_time(end) / 1000, on_host)
        self._free += [begin, end]


def make_stopwatch(device: torch.device) -> Stopwatch:
    """Return a stopwatch for a device."""
    return CudaStopwatch() if device.type == "cuda" else HostStopwatch()


def gpu_telemetry() -> Mapping[str, float]:
    """Return temperature, power, utilization and clock of the current GPU, through NVML.

    Empty without a GPU or without NVML (package nvidia-ml-py). Values that the GPU does not provide are omitted.
    """
    if not torch.cuda.is_available():
        return {}
    queries = (
        lambda: float(torch.cuda.temperature()),
        lambda: torch.cuda.power_draw() / 1000,
        lambda: float(torch.cuda.utilization()),
        lambda: float(torch.cuda.clock_rate()),
    )
    return {
        name: value
        for name, query in zip(UNITS, queries, strict=True)
        if (value := _query(query)) is not None
    }


def _query(query: Callable[[], float]) -> float | None:
    try:
        return query()
    except (RuntimeError, ModuleNotFoundError):  # raised by torch for an old NVML, and without NVML
        return None
    except Exception as error:
        # Compared by name, because the errors of NVML can be imported only where it is installed.
        if type(error).__module__ != "pynvml":
            raise
        return None
