"""CUDA device queries: current device, capability, memory."""

import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

HOST = torch.device("cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostProperties:
    """Return value of `torch.cuda.get_device_properties` for the CPU; sizes in bytes.

    The compute capability is 0.0, so that no hardware feature is detected.
    """

    name: str
    total_memory: int
    multi_processor_count: int
    major: int = 0
    minor: int = 0


def is_cuda_device(device: object) -> bool:
    """Return whether torch interprets `device` (a name, an index or a `torch.device`) as a CUDA device."""
    if isinstance(device, str):
        return device == "cuda" or device.startswith("cuda:")
    if isinstance(device, torch.device):
        return device.type == "cuda"
    return isinstance(device, int) and not isinstance(device, bool)


def do_nothing() -> Callable[..., None]:
    """Return a new function that accepts any arguments and does nothing.

    A new one each time, because dynamo's function table rejects one object under two names.
    """
    return lambda *_args, **_kwargs: None


def host_memory() -> tuple[int, int]:
    """Return the free and the total memory of this machine in bytes."""
    page = os.sysconf("SC_PAGE_SIZE")
    total = page * os.sysconf("SC_PHYS_PAGES")
    free = page * os.sysconf("SC_AVPHYS_PAGES") if "SC_AVPHYS_PAGES" in os.sysconf_names else total
    return free, total


def host_properties() -> HostProperties:
    """Return the properties of this machine as a device."""
    return HostProperties(
        name=platform.processor() or platform.machine(),
        total_memory=host_memory()[1],
        multi_processor_count=os.cpu_count() or 1,
    )


def replace_device() -> None:
    """Make `torch.cuda` report one device with index 0: the CPU.

    `is_available` returns False, and `current_device` returns an int as on a GPU, because callers format it into device
    names.
    """
    cuda: Any = torch.cuda
    cuda.is_available = lambda *_args, **_kwargs: False
    cuda.current_device = lambda *_args, **_kwargs: 0
    cuda.device_count = lambda *_args, **_kwargs: 1
    cuda.set_device = do_nothing()
    cuda.synchronize = do_nothing()
    cuda._exchange_device = lambda *_args, **_kwargs: 0
    cuda._maybe_exchange_device = lambda *_args, **_kwargs: 0
    cuda.get_device_capability = lambda *_args, **_kwargs: (0, 0)
    cuda.get_device_name = lambda *_args, **_kwargs: host_properties().name
    cuda.get_device_properties = lambda *_args, **_kwargs: host_properties()
    cuda.mem_get_info = lambda *_args, **_kwargs: host_memory()
    cuda.reset_peak_memory_stats = do_nothing()
    cuda.reset_accumulated_memory_stats = do_nothing()
