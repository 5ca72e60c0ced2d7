"""Time spent and time left of a run: of the steps that `Metrics` records, and from a training state."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from mb_metrics.names import TIME_BATCHES, TIME_LEFT, TIME_SAMPLES, TIME_TOKENS, TIME_TOTAL
from mb_metrics.recorder.clock import TimedStep

SECONDS: Mapping[str, float] = {"seconds": 1.0, "minutes": 60.0, "hours": 3600.0, "days": 86400.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunProgress:
    """Progress of a run after a step. Times are read on access, which waits for the device.

    The time left includes evaluations and checkpoints at the rate observed so far: the work since the end of the first
    step of this job, divided by the time since then. Work is counted in samples if the length in samples and the
    consumed samples are known, so that a growing batch size does not bias the estimate; otherwise in steps. The first
    step includes compilation and warm-up and is used only while it is the only one.
    """

    first: TimedStep
    """First step of this job."""
    last: TimedStep
    total_steps: int | None
    """Length of the run in steps; None: not known."""
    total_samples: int | None
    """Length of the run in samples; None: not known."""

    @property
    def seconds_left(self) -> float | None:
        """Time to the end of the run as of the last step; None: the length of the run is not known."""
        first, last = self.first, self.last
        alone = first is last
        before = first.consumed_samples
        if alone and before is not None:
            before = None if first.samples is None else before - first.samples
        if self.total_samples is not None and last.consumed_samples is not None and before is not None:
            done, left = last.consumed_samples - before, self.total_samples - last.consumed_samples
        elif self.total_steps is not None:
            done, left = last.step - first.step + alone * first.steps, self.total_steps - last.step
        else:
            return None
        seconds = last.timer.seconds(first.begin if alone else first.end, last.end)
        return seconds / done * max(0, left) if done > 0 else None

    def values(self, unit: str) -> dict[str, float]:
        """Return time spent, time left and work done since the start of the run, under their `time/` names.

        Tokens are extrapolated from the consumed samples and the tokens per sample of this step.
        """
        last, left = self.last, self.seconds_left
        report = {TIME_TOTAL: last.timer.seconds(self.first.begin, last.end) / SECONDS[unit]}
        if left is not None:
            report[TIME_LEFT] = left / SECONDS[unit]
        if last.consumed_samples is not None:
            if last.tokens is not None and last.samples:
                report[TIME_TOKENS] = last.consumed_samples * last.tokens / last.samples
            report[TIME_SAMPLES] = float(last.consumed_samples)
        return report | {TIME_BATCHES: float(last.step)}


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
