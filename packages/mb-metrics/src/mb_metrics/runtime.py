"""How long a run has taken and will take."""

import time
from collections.abc import Callable
from typing import Protocol

_SECONDS = {"seconds": 1, "minutes": 60, "hours": 3600, "days": 86400}


class TrainProgress(Protocol):
    """What `report_runtime` reads of a training state."""

    @property
    def step(self) -> int:
        """Steps done since the run began, over all its jobs."""

    @property
    def consumed_train_samples(self) -> int:
        """Sequences consumed since the run began."""


def report_runtime(  # noqa: PLR0913 - the signature of Megatron trainers, and where this job began
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

    `start_time` is when this job started, by `clock`; `start_step` the step it started from (0, or the step of the
    checkpoint that it resumed from). The time left is the pace of this job's own steps, times the steps left. With
    `train_samples`, the length of the run in samples, it is the pace of this job's samples, which stays right while
    the batch size grows; `start_samples` are those consumed before this job. Evaluations and checkpoints so far
    are in that pace. `time/remaining_estimate` is missing until this job has made a step; `time/total` is this job's
    time.

    Raises:
        ValueError: `time_unit` is not seconds, minutes, hours or days.
    """
    if time_unit not in _SECONDS:
        raise ValueError(
            f"report_runtime: no time unit {time_unit!r}; times are reported in one of {', '.join(_SECONDS)}. Set one."
        )
    elapsed = (clock() - start_time) / _SECONDS[time_unit]
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
