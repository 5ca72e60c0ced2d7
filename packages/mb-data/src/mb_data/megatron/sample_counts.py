"""Numbers of samples that a run draws from each split. Standard library only."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleCounts:
    """Numbers of samples (sequences) that a run draws from each split; 0 means that the split is not needed."""

    train: int
    valid: int
    test: int


def dataset_sample_counts(
    train_iters: int,
    *,
    global_batch_size: int,
    eval_interval: int | None,
    eval_iters: int | None,
    eval_global_batch_size: int | None = None,
    train_samples: int | None = None,
    validation_sets: bool = False,
) -> SampleCounts:
    """Return the numbers of samples that a run needs.

    Validation runs every `eval_interval` steps and again after training. Without an interval or without evaluation
    batches there is no validation.

    Args:
        train_iters: Optimizer steps of the complete run.
        global_batch_size: Sequences in one optimizer step.
        eval_interval: Steps between two validations.
        eval_iters: Batches in one validation, and in the final test.
        eval_global_batch_size: Sequences in one evaluation batch; None: as in training.
        train_samples: Sequences of the complete run, if set instead of the number of steps (batch size ramp-up).
        validation_sets: The validation data has complete or named sets: at least one sample if validation is scheduled,
            also without `eval_iters`.
    """
    batches = eval_iters or 0
    test = batches * (global_batch_size if eval_global_batch_size is None else eval_global_batch_size)
    valid = (train_iters // eval_interval + 1) * test if eval_interval else 0
    return SampleCounts(
        train=train_iters * global_batch_size if train_samples is None else train_samples,
        valid=max(1, valid) if validation_sets and eval_interval else valid,
        test=test,
    )
