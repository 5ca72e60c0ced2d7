"""Timing on a GPU, what it says of itself, and the exchange between ranks. Needs torch."""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from mb_resilience.straggler import HostStopwatch, Stopwatch
from mb_resilience.straggler_report import UNITS

Known = TypeVar("Known")
Section = tuple[torch.cuda.Event, torch.cuda.Event, float]


class RowAllGather:
    """Brings the numbers of all ranks of a group together: an `AllGatherRows`. Each call is one collective.

    Args:
        group: the ranks; None: all.
        device: where its collectives take tensors.
    """

    def __init__(self, group: ProcessGroup | None = None, *, device: torch.device | str = "cpu") -> None:
        self._group = group
        self._device = device

    def __call__(self, row: Sequence[float]) -> Sequence[Sequence[float]]:
        """Return the rows of all ranks, by rank in the group. Waits for the device."""
        own = torch.tensor(row, dtype=torch.float64, device=self._device)
        rows = [torch.empty_like(own) for _ in range(torch.distributed.get_world_size(self._group))]
        torch.distributed.all_gather(rows, own, group=self._group)
        return [_numbers(each) for each in rows]


class BroadcastFromRank0:
    """Tells all ranks of a group what its rank 0 knows. Each call is one collective of pickled objects.

    Args:
        group: the ranks; None: all.
        device: where its collectives take tensors; None: torch finds out.
    """

    def __init__(self, group: ProcessGroup | None = None, *, device: torch.device | None = None) -> None:
        self._group = group
        self._device = device

    def __call__(self, known: Known) -> Known:
        """Return what rank 0 gave; what others give is not looked at."""
        box = [known]
        source = torch.distributed.get_global_rank(self._group, 0) if self._group is not None else 0
        torch.distributed.broadcast_object_list(box, src=source, group=self._group, device=self._device)
        return box[0]


def _numbers(row: Tensor) -> list[float]:
    return [float(value) for value in row.tolist()]


class CudaStopwatch:
    """Sums up sections on the stream of the GPU, or on the host where that takes longer.

    Two events are put on the current stream for each section. Nothing waits for the device but `read`, and that only
    for the last section. Events are used again as soon as the device has passed them.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._free: list[torch.cuda.Event] = []
        self._open: tuple[torch.cuda.Event, float] | None = None
        self._in_flight: deque[Section] = deque()
        self._seconds = 0.0

    def start(self) -> None:
        """Begin a section on the current stream."""
        event = self._open[0] if self._open else self._event()
        event.record()
        self._open = event, self._clock()

    def stop(self) -> None:
        """End the section on the current stream."""
        if self._open is None:
            return
        begin, began = self._open
        end = self._event()
        end.record()
        self._open = None
        self._in_flight.append((begin, end, self._clock() - began))
        while self._in_flight and self._in_flight[0][1].query():  # type: ignore[no-untyped-call]
            self._settle()

    def read(self) -> float:
        """Return the seconds of all sections that ended, and begin again at 0. Waits for the last of them."""
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
    """Return what times work on a device."""
    return CudaStopwatch() if device.type == "cuda" else HostStopwatch()


def gpu_telemetry() -> Mapping[str, float]:
    """Ask the current GPU for temperature, power, utilisation and clock, through NVML.

    Empty where there is no GPU or no NVML (package nvidia-ml-py); what one GPU does not tell is left out.
    """
    if not torch.cuda.is_available():
        return {}
    requested = (
        lambda: float(torch.cuda.temperature()),
        lambda: torch.cuda.power_draw() / 1000,
        lambda: float(torch.cuda.utilization()),
        lambda: float(torch.cuda.clock_rate()),
    )
    return {
        name: value for name, ask in zip(UNITS, requested, strict=True) if (value := _query(ask)) is not None
    }


def _query(ask: Callable[[], float]) -> float | None:
    try:
        return ask()
    except (RuntimeError, ModuleNotFoundError):  # torch's word for an old NVML, and for none
        return None
    except Exception as error:
        if (
            type(error).__module__ != "pynvml"
        ):  # NVML's own errors have no name that can be imported without it
            raise
        return None
