"""Result of a benchmark, and the ratios of two results. No torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import median
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchResult:
    """What was measured in a run. None: not known, or not measured on this kind of device."""

    device: str
    """Name of the device."""
    world_size: int
    """Number of processes."""
    warmup_steps: int
    """Steps before the measurement."""
    step_times: tuple[float, ...]
    """Seconds of each measured step."""
    tokens: int | None
    """Tokens of the measured steps over all ranks."""
    flops: float | None
    """Model FLOPs of the measured steps over all ranks."""
    peak_tflops: float | None
    """Dense peak TFLOP/s of one device."""
    peak_memory_gib: float | None
    """Largest memory of a rank since the start: of the allocator on a GPU, of the process on a CPU."""
    synchronizations_per_step: float | None
    """Calls of CUDA that make the host wait for the GPU."""
    scalar_reads_per_step: float | None
    """Numbers that the host reads from tensors, such as by `item()`; on a GPU each one waits for it."""
    kernel_launches_per_step: float | None
    """Kernels and graphs that the host launches."""
    losses: tuple[float, ...] = field(default=())
    """Loss of each step before and within the measurement; empty if the loop reports none."""

    @property
    def seconds(self) -> float:
        """Seconds of all measured steps."""
        return sum(self.step_times)

    @property
    def step_seconds(self) -> float:
        """Median seconds of a measured step."""
        return median(self.step_times)

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens per second over all devices."""
        return None if self.tokens is None else self.tokens / self.seconds

    @property
    def tflops_per_device(self) -> float | None:
        """Model TFLOP/s of one device."""
        return None if not self.flops else self.flops / self.seconds / self.world_size / 1e12

    @property
    def mfu(self) -> float | None:
        """Model FLOPs utilisation: TFLOP/s of a device as a fraction of its peak."""
        rate = self.tflops_per_device
        return None if rate is None or not self.peak_tflops else rate / self.peak_tflops

    def numbers(self) -> dict[str, float | None]:
        """Return the numbers that two results are compared by."""
        return {
            "step_seconds": self.step_seconds,
            "tokens_per_second": self.tokens_per_second,
            "mfu": self.mfu,
            "peak_memory_gib": self.peak_memory_gib,
            "kernel_launches_per_step": self.kernel_launches_per_step,
        }

    def as_json(self) -> dict[str, Any]:
        """Return what the command prints."""
        times = self.step_times
        return {
            "device": self.device,
            "world_size": self.world_size,
            "warmup_steps": self.warmup_steps,
            "steps": len(times),
            "step_seconds": {"median": self.step_seconds, "min": min(times), "max": max(times)},
            "tokens_per_second": self.tokens_per_second,
            "tflops_per_device": self.tflops_per_device,
            "mfu": self.mfu,
            "peak_memory_gib": self.peak_memory_gib,
            "synchronizations_per_step": self.synchronizations_per_step,
            "scalar_reads_per_step": self.scalar_reads_per_step,
            "kernel_launches_per_step": self.kernel_launches_per_step,
            "losses": [loss if math.isfinite(loss) else None for loss in self.losses],
        }

    def as_text(self) -> str:
        """Return the result as one line."""
        parts = [f"{self.step_seconds:.4g} s per step"]
        parts += [] if self.tokens_per_second is None else [f"{self.tokens_per_second:,.0f} tokens/s"]
        parts += [] if self.mfu is None else [f"MFU {self.mfu:.1%}"]
        parts += [] if self.peak_memory_gib is None else [f"{self.peak_memory_gib:.2f} GiB"]
        waits, launches = self.synchronizations_per_step, self.kernel_launches_per_step
        parts += [] if waits is None else [f"{waits:g} synchronizations per step"]
        parts += [] if launches is None else [f"{launches:g} launches per step"]
        return ", ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, for `from_dict` in another process."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> BenchResult:
        """Return the result whose fields `to_dict` returned."""
        lists = {name: tuple(values[name]) for name in ("step_times", "losses")}
        return cls(**{**values, **lists})


def combine_rounds(rounds: Sequence[BenchResult]) -> BenchResult:
    """Return one result for several runs of the same command: all step times, the largest memory.

    Counts per step and losses are those of the first round.
    """
    first = rounds[0]
    tokens, flops = [of_round.tokens for of_round in rounds], [of_round.flops for of_round in rounds]
    memory = [of_round.peak_memory_gib for of_round in rounds if of_round.peak_memory_gib is not None]
    return replace(
        first,
        step_times=tuple(seconds for of_round in rounds for seconds in of_round.step_times),
        tokens=None if None in tokens else sum(count or 0 for count in tokens),
        flops=None if None in flops else sum(count or 0.0 for count in flops),
        peak_memory_gib=max(memory, default=None),
    )


def ratios(result: BenchResult, against: BenchResult) -> dict[str, float | None]:
    """Return each number of a result as a multiple of that of another one; None where one of them is not known."""
    theirs = against.numbers()
    return {
        name: number / reference if number is not None and (reference := theirs[name]) else None
        for name, number in result.numbers().items()
    }
