"""Sections of the configuration, as mb-data takes them."""

from typing import Any

from mb_config import ValidationConfig
from mb_config.schedule import sequences_after
from mb_data import (
    BatchSettings,
    DataRanks,
    DatasetBuildContext,
    RunDatasets,
    SampleCounts,
    ValidationSetOptions,
    build_run_datasets,
    dataset_sample_counts,
    required_padding,
)
from mb_loop.settings import evaluation_batch
from mb_trainer.config import ConfigContainer


def validation_sets(validation: ValidationConfig) -> ValidationSetOptions:
    """Return the division of the validation data into sets."""
    return ValidationSetOptions(
        complete=validation.full_validation,
        several=validation.multiple_validation_sets,
        names=validation.validation_set_names,
    )


def sample_counts(config: ConfigContainer) -> SampleCounts:
    """Count the samples that the run reads from each split; an evaluation-only run evaluates once."""
    train, validation = config.train, config.validation
    steps = train.train_iters or 0
    samples = train.train_samples
    if train.step_batch_size_schedule is not None:
        samples = sequences_after(steps, train, seq_length=config.model.seq_length)
    return dataset_sample_counts(
        steps,
        global_batch_size=train.global_batch_size or 0,
        eval_interval=validation.eval_interval or (steps + 1 if validation.skip_train else None),
        eval_iters=validation.eval_iters,
        eval_global_batch_size=validation.eval_global_batch_size,
        train_samples=samples,
        validation_sets=validation_sets(validation).has_sets,
    )


def build_datasets(config: ConfigContainer, **context: Any) -> RunDatasets:
    """Build the datasets of a run; `context` has further fields of the build context. Collective over the world."""
    counts, groups = sample_counts(config), context["pg_collection"]
    return build_run_datasets(
        config.dataset,
        DatasetBuildContext(
            train_samples=counts.train,
            valid_samples=counts.valid,
            test_samples=counts.test,
            reads_data=DataRanks.of(groups).reads_data,
            padding=required_padding(config.model),
            **context,
        ),
        validation=validation_sets(config.validation),
    )


def batch_settings(config: ConfigContainer) -> BatchSettings:
    """Return the batch sizes of a run."""
    train, validation = config.train, config.validation
    return BatchSettings(
        micro_batch_size=train.micro_batch_size or 1,
        global_batch_size=train.global_batch_size,
        round_down=train.decrease_batch_size_if_needed,
        eval_micro_batch_size=validation.eval_micro_batch_size,
        eval_global_batch_size=evaluation_batch(config).samples,
        eval_iters=validation.eval_iters or 0,
        model_chunks=config.model.virtual_pipeline_model_parallel_size or 1,
        seed=config.rng.seed,
    )
