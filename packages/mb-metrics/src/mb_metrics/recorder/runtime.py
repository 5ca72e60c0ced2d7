"""Time spent and time left of a run."""

import time
from collections.abc import Callable
from typing import Protocol

from mb_metrics.run.progress import SECONDS


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
        "time/total": elapsed,
        "time/tokens": float(train_state.consumed_train_samples * seq_length),
        "time/samples": float(train_state.consumed_train_samples),
        "time/batches": float(train_state.step),
    }
    done, left = train_state.step - start_step, train_iters - train_state.step
    if train_samples is not None:
        consumed = train_state.consumed_train_samples
        done, left = consumed - start_samples, train_samples - consumed
    if done > 0:
        report["time/remaining_estimate"] = elapsed / done * max(0, left)
    return report
