"""Sampler of the memory of a GPU, the names of its metrics, and their values per pipeline stage.

torch is imported at the first sample, because the names are also needed where it is not installed.
"""

import logging
from collections.abc import Mapping
from importlib import import_module

from mb_metrics.names import DEVICE_MEMORY_USED, MEMORY_KEYS, memory_name
from mb_metrics.recorder.recorded_steps import Reduction, Sampler, Value

_logger = logging.getLogger(__name__)

_PREFIX = "memory/"


class MemorySampler:
    """Sampler of the memory of this rank's GPU, under "memory/...".

    Does not synchronize with the device. Without a GPU there are no metrics, and the first sample logs a warning.

    Args:
        allocator: If True, report torch's allocator statistics.
        keys: Reported entries of torch.cuda.memory_stats(), mapped to metric names; None: a built-in table.
        device: If True, also report the used memory of all processes, according to the driver.
        every: Steps between samples, a multiple of the log interval; None: at each log interval.

    Raises:
        ValueError: Both `allocator` and `device` are False, or `every` is not positive.
    """

    def __init__(
        self,
        *,
        allocator: bool = True,
        keys: Mapping[str, str] | None = None,
        device: bool = False,
        every: int | None = None,
    ) -> None:
        if not (allocator or device):
            raise ValueError(
                "MemorySampler: allocator=False and device=False leave nothing to sample. Set one of them, or leave "
                "the sampler out."
            )
        if every is not None and every < 1:
            raise ValueError(
                f"MemorySampler: every={every} is not a number of steps between samples. Set it to 1 or more, or None."
            )
        self._allocator = allocator
        self._keys = keys
        self._device = device
        self._every = 1 if every is None else every
        self._warned = False

    def __call__(self, step: int) -> dict[str, float]:
        """Return the memory metrics if they are due at this step, else an empty mapping."""
        if step % self._every:
            return {}
        memory = import_module("mb_metrics.recorder.memory")
        report = memory.report_memory(self._keys) if self._allocator else {}
        if self._device:
            report |= memory.device_memory_used()
        if not report and not self._warned:
            self._warned = True
            _logger.warning(
                "memory metrics: there are none, because PyTorch finds no GPU in this process or none of the requested "
                "statistics. Leave out log_memory_to_tensorboard and log_device_memory_used on such a machine."
            )
        return {_PREFIX + name: float(value) for name, value in report.items()}


def memory_names(keys: Mapping[str, str] | None, *, device: bool) -> list[str]:
    """Return the names of the metrics that a `MemorySampler` may report."""
    names = [memory_name(key, name) for key, name in (keys or MEMORY_KEYS).items()]
    return [_PREFIX + name for name in (*names, *([DEVICE_MEMORY_USED] if device else []))]


def add_stage_reductions(reductions: Mapping[str, Reduction], *, stages: int) -> dict[str, Reduction]:
    """Return the reductions, with those of memory also per stage if there are several pipeline stages."""
    result = dict(reductions)
    # Every rank needs the names of all stages, because the collective has one column for each reduced metric.
    for stage in range(stages if stages > 1 else 0):
        result |= {
            stage_name(name, stage): how for name, how in reductions.items() if name.startswith(_PREFIX)
        }
    return result


def add_stage_values(sampler: Sampler, *, stage: int, stages: int) -> Sampler:
    """Return the sampler, with its memory values also under the name of this stage if there are several."""

    def sample(step: int) -> Mapping[str, Value]:
        values = sampler(step)
        of_stage = {stage_name(name, stage): values[name] for name in values if name.startswith(_PREFIX)}
        return {**values, **of_stage}

    return sample if stages > 1 else sampler


def stage_name(name: str, stage: int) -> str:
    """Return the name of a memory metric of a stage.

    >>> stage_name("memory/mem-allocated-gigabytes", 1)
    'memory/stage 1/mem-allocated-gigabytes'
    """
    return f"{_PREFIX}stage {stage}/{name.removeprefix(_PREFIX)}"
