"""Datasets and batches of a run, from its configuration."""

from typing import Any

from mb_config.trainer_api import sequences_after
from mb_data import (
    BatchSettings,
    DataRanks,
    DatasetBuildContext,
    RunDatasets,
    SampleCounts,
    build_run_datasets,
    required_padding,
    run_batch_settings,
    run_sample_counts,
)
from mb_data.trainer_api import validation_set_options
from mb_loop.trainer_api import evaluation_batch
from mb_trainer.config import ConfigContainer


def sample_counts(config: ConfigContainer) -> SampleCounts:
    """Count the samples that the run reads from each split; an evaluation-only run evaluates once."""
    train, samples = config.train, None
    if train.step_batch_size_schedule is not None:
        samples = sequences_after(train.train_iters or 0, train, seq_length=config.model.seq_length)
    return run_sample_counts(train, config.validation, train_samples=samples)


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
            micro_batch_size=config.train.micro_batch_size or 1,
            padding=required_padding(config.model),
            **context,
        ),
        validation=validation_set_options(config.validation),
    )


def batch_settings(config: ConfigContainer) -> BatchSettings:
    """Return the batch sizes of a run."""
    return run_batch_settings(
        config.train,
        config.validation,
        eval_global_batch_size=evaluation_batch(config).samples,
        model_chunks=config.model.virtual_pipeline_model_parallel_size,
        seed=config.rng.seed,
        routed=has_experts(config),
    )


def has_experts(config: ConfigContainer) -> bool:
    """Return whether the model routes tokens to experts."""
    return bool(getattr(config.model, "num_moe_experts", None))


def batch_form(config: ConfigContainer) -> dict[str, Any]:
    """Return the options of a forward step that the form of the data requires."""
    forms = {"packed": config.dataset.is_packed, "padded": config.dataset.is_padded and has_experts(config)}
    return {name: value for name, value in forms.items() if value}
