"""Throughput and progress of a training state, under Megatron-Bridge's function names."""

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from mb_metrics.names import TIME_BATCHES, TIME_LEFT, TIME_SAMPLES, TIME_TOKENS, TIME_TOTAL
from mb_metrics.recorder.interval import SECONDS, WorkTotals, current_world_size


class BatchSizes(Protocol):
    """Fields of a training configuration that `report_throughput` reads."""

    @property
    def global_batch_size(self) -> int:
        """Sequences per step, over all data-parallel ranks."""

    @property
    def micro_batch_size(self) -> int:
        """Sequences per microbatch and rank."""


def report_throughput(
    train_config: BatchSizes,
    iteration: int,
    seq_length: int,
    history_wct: Sequence[float],
    window_size: int,
    *,
    world_size: int | None = None,
    consumed_samples: Sequence[int] | None = None,
) -> dict[str, float]:
    """Return rates over the newest `window_size` steps, under their `throughput/` names.

    `history_wct` contains a time stamp in seconds after each step, oldest first; n + 1 stamps delimit n steps, and the
    rates count n steps. `consumed_samples`, of the same length as the history, makes the rates accurate while the
    batch size changes; without it each step counts `train_config.global_batch_size` sequences. Rates per device are
    divided by `world_size`, by default the size of the initialized process group, else WORLD_SIZE, else 1. `iteration`
    is not read; Megatron-Bridge passes it at this position.

    Returns an empty mapping if there are fewer than `window_size` stamps, or if no time has passed.

    Raises:
        ValueError: `consumed_samples` and `history_wct` differ in length, or WORLD_SIZE is not a positive integer.
    """
    if consumed_samples is not None and len(consumed_samples) != len(history_wct):
        raise ValueError(
            f"report_throughput: {len(consumed_samples)} sample counts for {len(history_wct)} time stamps. Each stamp "
            "needs the number of samples consumed at that time. Append to both after each step."
        )
    stamps = list(history_wct)[-(window_size + 1) :]
    steps = len(stamps) - 1
    if len(history_wct) < window_size or steps < 1 or stamps[-1] <= stamps[0]:
        return {}
    samples = steps * train_config.global_batch_size
    if consumed_samples is not None:
        samples = consumed_samples[-1] - consumed_samples[-1 - steps]
    sizes = {
        "throughput/micro_batch_size": float(train_config.micro_batch_size),
        "throughput/global_batch_size": float(train_config.global_batch_size),
    }
    seconds = stamps[-1] - stamps[0]
    totals = WorkTotals(seconds=seconds, steps=steps, samples=samples, tokens=samples * seq_length)
    devices = current_world_size() if world_size is None else world_size
    return totals.rates(world_size=devices) | sizes


class TrainProgress(Protocol):
    """Fields of a training state that `report_runtime` reads."""

    @property
    def step(self) -> int:
        """Completed steps since the start of the run, over all its jobs."""

    @property
    def consumed_train_samples(self) -> int:
        """Sequences consumed since the start of the run."""


def report_runtime(  # noqa: PLR0913 - the signature of Megatron trainers, and the start of this job
    train_state: TrainProgress,
    start_time: float,
    seq_length: int,
    train_iters: int,
    time_unit: str = "seconds",
    *,
    start_step: int = 0,
    train_samples: int | None = None,
    start_samples: int = 0,
    clock: Callable[[], float] = time.time,
) -> dict[str, float]:
    """Return time spent, time left and progress, under their `time/` names.

    `start_time` is the start of this job, by `clock`; `start_step` is the step from which it started (0, or the step
    of the checkpoint that it resumed from). The time left is the mean time per step of this job multiplied by the
    remaining steps. With `train_samples`, the length of the run in samples, it is computed per sample, which remains
    accurate while the batch size grows; `start_samples` is the number of samples consumed before this job. The mean
    includes evaluations and checkpoints. `time/remaining_estimate` is omitted until this job has completed a step;
    `time/total` is the time of this job.

    Raises:
        ValueError: `time_unit` is not seconds, minutes, hours or days.
    """
    if time_unit not in SECONDS:
        raise ValueError(
            f"report_runtime: unknown time unit {time_unit!r}. Supported units are {', '.join(SECONDS)}. Choose one."
        )
    elapsed = (clock() - start_time) / SECONDS[time_unit]
    report = {
        TIME_TOTAL: elapsed,
        TIME_TOKENS: float(train_state.consumed_train_samples * seq_length),
        TIME_SAMPLES: float(train_state.consumed_train_samples),
        TIME_BATCHES: float(train_state.step),
    }
    done, left = train_state.step - start_step, train_iters - train_state.step
    if train_samples is not None:
        consumed = train_state.consumed_train_samples
        done, left = consumed - start_samples, train_samples - consumed
    if done > 0:
        report[TIME_LEFT] = elapsed / done * max(0, left)
    return report
