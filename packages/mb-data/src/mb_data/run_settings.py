"""Data settings of a run, from configuration sections with the field names of Megatron-Bridge."""

from collections.abc import Sequence
from typing import Protocol

from mb_data.loading.batch_iterators import BatchSettings
from mb_data.loading.validation_sets import ValidationSetOptions
from mb_data.megatron.sample_counts import SampleCounts, dataset_sample_counts


class TrainFields(Protocol):
    """Length and batch sizes of a run; the section `train` of a configuration matches."""

    train_iters: int | None
    train_samples: int | None
    global_batch_size: int | None
    micro_batch_size: int | None
    decrease_batch_size_if_needed: bool


class ValidationFields(Protocol):
    """Schedule and batch sizes of evaluations; the section `validation` of a configuration matches."""

    eval_interval: int | None
    eval_iters: int | None
    eval_global_batch_size: int | None
    eval_micro_batch_size: int | None
    full_validation: bool
    multiple_validation_sets: bool
    skip_train: bool

    @property
    def validation_set_names(self) -> Sequence[str] | None: ...  # noqa: D102


def validation_set_options(validation: ValidationFields) -> ValidationSetOptions:
    """Return the division of the validation data into sets."""
    return ValidationSetOptions(
        complete=validation.full_validation,
        several=validation.multiple_validation_sets,
        names=validation.validation_set_names,
    )


def run_sample_counts(
    train: TrainFields, validation: ValidationFields, *, train_samples: int | None = None
) -> SampleCounts:
    """Return the numbers of samples that a run draws from each split; an evaluation-only run evaluates once.

    Args:
        train: Length and batch sizes.
        validation: Schedule of the evaluations.
        train_samples: Sequences of the complete run, where the batch size follows a schedule; None: that of `train`.
    """
    steps = train.train_iters or 0
    return dataset_sample_counts(
        steps,
        global_batch_size=train.global_batch_size or 0,
        eval_interval=validation.eval_interval or (steps + 1 if validation.skip_train else None),
        eval_iters=validation.eval_iters,
        eval_global_batch_size=validation.eval_global_batch_size,
        train_samples=train.train_samples if train_samples is None else train_samples,
        validation_sets=validation_set_options(validation).has_sets,
    )


def run_batch_settings(
    train: TrainFields,
    validation: ValidationFields,
    *,
    eval_global_batch_size: int | None = None,
    model_chunks: int | None = None,
    seed: int = 1234,
    routed: bool = False,
) -> BatchSettings:
    """Return the batch sizes of a run.

    Args:
        train: Batch sizes of training.
        validation: Batch sizes and number of batches of an evaluation.
        eval_global_batch_size: Sequences of one evaluation batch after rounding; None: that of `validation`.
        model_chunks: Model chunks of this rank under an interleaved pipeline; None: one.
        seed: Seed of the cyclic order and of the workers' random number generators.
        routed: The model has experts, which leave padding out of their balance.
    """
    batch_size = (
        validation.eval_global_batch_size if eval_global_batch_size is None else eval_global_batch_size
    )
    return BatchSettings(
        micro_batch_size=train.micro_batch_size or 1,
        global_batch_size=train.global_batch_size,
        round_down=train.decrease_batch_size_if_needed,
        eval_micro_batch_size=validation.eval_micro_batch_size,
        eval_global_batch_size=batch_size,
        eval_iters=validation.eval_iters or 0,
        model_chunks=model_chunks or 1,
        seed=seed,
        routed=routed,
    )
