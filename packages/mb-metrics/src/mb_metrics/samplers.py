"""What is measured once per log interval: device memory, energy. torch is imported at the first sample."""

from collections.abc import Mapping
from importlib import import_module

MEMORY = "memory/"
_DEVICE_USED = "mem-device-used-gigabytes"


class MemorySampler:
    """Measures the memory of this rank's GPU, under "memory/..."; nothing where there is no GPU.

    Does not synchronise with the device.

    Args:
        allocator: Whether to report torch's allocator statistics.
        keys: Which entries of torch.cuda.memory_stats() to report, and their names; None: a built-in table.
        device: Whether to report, too, what the driver calls used, of all processes.
        every: Steps between samples, a multiple of the log interval; None: at each log interval.
    """

    def __init__(
        self,
        *,
        allocator: bool = True,
        keys: Mapping[str, str] | None = None,
        device: bool = False,
        every: int | None = None,
    ) -> None:
        self._allocator = allocator
        self._keys = keys
        self._device = device
        self._every = every or 1

    def __call__(self, step: int) -> dict[str, float]:
        """Return the memory metrics, where they are due at this step."""
        if step % self._every:
            return {}
        memory = import_module("mb_metrics.memory")
        report = memory.report_memory(self._keys) if self._allocator else {}
        if self._device:
            report |= memory.device_memory_used()
        return {MEMORY + name: float(value) for name, value in report.items()}


def memory_names(keys: Mapping[str, str] | None, *, device: bool) -> list[str]:
    """Return the names of the metrics that a `MemorySampler` may give. Imports torch."""
    reported = (keys or import_module("mb_metrics.memory").MEMORY_KEYS).items()
    names = [name.replace("bytes", "gigabytes") if "bytes" in key else name for key, name in reported]
    return [MEMORY + name for name in [*names, *([_DEVICE_USED] if device else [])]]
