"""Arithmetic of the learning-rate schedule. Its unit is the sequence; a step is one global batch of sequences."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from mb_config.sections.optimizer import OptimizerConfig
from mb_config.sections.scheduler import SchedulerConfig
from mb_config.sections.training import TrainingConfig
from mb_schema.batch_stages import BatchStage, scheduled_stages, sequences_in, unscheduled_stages


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSteps:
    """Lengths for Megatron's scheduler, in sequences."""

    lr_decay_steps: int
    """End of the decay of the learning rate."""

    lr_warmup_steps: int | float
    """End of the warm-up, before the end of the decay. A fraction of the horizon need not be an integer."""

    wd_incr_steps: int
    """End of the increase of the weight decay."""

    wsd_decay_steps: int | None
    """Length of the decay phase of WSD; None for styles without one."""


def scheduler_steps(
    train: TrainingConfig,
    scheduler: SchedulerConfig,
    *,
    data_parallel_size: int | None = None,
    seq_length: int | None = None,
) -> SchedulerSteps:
    """Compute the lengths of the schedule. The sections are not modified.

    Lengths in steps are converted to the sequences that these steps consume. These are fewer than steps x global batch
    size if the batch grows (`rampup_batch_size`) or is rounded down, and follow `step_batch_size_schedule` if it is
    set. A warm-up given as a fraction is not rounded to full sequences, as in Megatron-Bridge. A warm-up that reaches
    the end of the decay is reduced to one sequence less (rule V205 warns about it).

    Args:
        train: The training section.
        scheduler: The scheduler section.
        data_parallel_size: Number of model replicas; required only for a batch that is rounded down.
        seq_length: Tokens per sequence. If it is set, thresholds of `step_batch_size_schedule` are in tokens.

    Raises:
        ValueError: If the training length or the global batch size is not set, or the decay has no length (V204).
    """
    if train.train_samples is not None:
        horizon = scheduler.lr_decay_samples
        return _steps(
            scheduler,
            horizon=train.train_samples if horizon is None else horizon,
            warmup=scheduler.lr_warmup_samples,
            last=scheduler.lr_wsd_decay_samples,
            length=train.train_samples,
        )

    def after(steps: int) -> int:
        return sequences_after(steps, train, data_parallel_size=data_parallel_size, seq_length=seq_length)

    length = train.train_iters if scheduler.max_steps is None else scheduler.max_steps
    if length is None:
        raise ValueError(
            "train.train_iters: is not set, and neither is train.train_samples, because the length of the schedule "
            "follows from them. Set one of the two."
        )
    given = scheduler.lr_decay_iters if scheduler.max_steps is None else scheduler.max_steps
    decay, last = length if given is None else given, scheduler.lr_wsd_decay_iters
    return _steps(
        scheduler,
        horizon=after(decay),
        warmup=after(scheduler.lr_warmup_iters),
        last=None if last is None else after(decay) - after(max(decay - last, 0)),
        length=after(length),
    )


def length_overrides(train: TrainingConfig, steps: int) -> tuple[str, ...]:
    """Return overrides that make a run `steps` steps long, in samples or in steps as its settings count.

    Batches that grow or change have no fixed number of samples in a step: such a run is counted in steps.
    """
    constant = train.rampup_batch_size is None and train.step_batch_size_schedule is None
    if train.train_samples is not None and train.global_batch_size is not None and constant:
        return (f"train.train_samples={steps * train.global_batch_size}",)
    counted = {"num_epochs": train.num_epochs, "train_samples": train.train_samples}
    others = (f"train.{name}=null" for name, value in counted.items() if value is not None)
    return (f"train.train_iters={steps}", *others)


def sequences_after(
    steps: int,
    train: TrainingConfig,
    *,
    data_parallel_size: int | None = None,
    seq_length: int | None = None,
) -> int:
    """Return the number of sequences that the first `steps` steps consume.

    The batch size follows `rampup_batch_size` or `step_batch_size_schedule`; see `mb_schema.batch_stages`.

    Raises:
        ValueError: If the global batch size is not set, or the schedule cannot be parsed.
    """
    unit = (train.micro_batch_size or 1) * (data_parallel_size or 1)
    stages: tuple[BatchStage, ...]
    if train.step_batch_size_schedule is not None:
        stages = scheduled_stages(train.step_batch_size_schedule, seq_length=seq_length)
    elif train.global_batch_size is not None:
        stages = unscheduled_stages(global_batch_size=train.global_batch_size, ramp=train.rampup_batch_size)
    else:
        raise ValueError(
            "train.global_batch_size: is not set, because a step counts as that many sequences. Set it to 1 or more."
        )
    return sequences_in(steps, stages, unit=unit if train.decrease_batch_size_if_needed else 1)


def epoch_iterations(num_epochs: float, *, dataset_size: int, global_batch_size: int) -> int:
    """Return the number of steps in which `num_epochs` epochs are read completely (V206).

    A batch may contain the end of one epoch and the beginning of the next, so that only the last step reads beyond the
    requested number. Megatron-Bridge rounds the steps of each epoch up instead.

    Raises:
        ValueError: If a number is not positive.
    """
    if num_epochs <= 0 or dataset_size <= 0 or global_batch_size <= 0:
        raise ValueError(
            f"train.num_epochs: {num_epochs} epochs of {dataset_size} sequences in batches of {global_batch_size} "
            f"have no length, because each of the three must be above 0. Correct the one that is not."
        )
    return math.ceil(Fraction(str(num_epochs)) * dataset_size / global_batch_size)  # 0.1 is exactly a tenth


def _steps(
    scheduler: SchedulerConfig, *, horizon: int, warmup: int, last: int | None, length: int
) -> SchedulerSteps:
    """Return the lengths of a schedule. All arguments are in sequences. The warm-up ends before the decay does.

    Raises:
        ValueError: The decay has no length.
    """
    if horizon <= 0:
        raise ValueError(
            f"scheduler: the decay of the learning rate would end at {horizon} sequences, because the training or its "
            f"decay has no length. Set train.train_iters or scheduler.lr_decay_iters above 0."
        )
    if last is None and scheduler.lr_decay_style == "WSD":
        last = horizon
    fraction = scheduler.lr_warmup_fraction
    wanted: int | float = warmup if fraction is None else fraction * horizon
    if isinstance(wanted, float) and wanted.is_integer():
        wanted = int(wanted)
    return SchedulerSteps(
        lr_decay_steps=horizon,
        lr_warmup_steps=wanted if wanted < horizon else horizon - 1,
        wd_incr_steps=length,
        wsd_decay_steps=last,
    )


def weight_decays(scheduler: SchedulerConfig, optimizer: OptimizerConfig) -> tuple[float, float]:
    """Return the weight decay at the start and at the end.

    A value that is None is that of the optimizer, or for a constant weight decay that of the other end.
    """
    start, end = scheduler.start_weight_decay, scheduler.end_weight_decay
    if scheduler.weight_decay_incr_style == "constant":
        start, end = (end if start is None else start), (start if end is None else end)
    default = optimizer.weight_decay
    return (default if start is None else start), (default if end is None else end)
