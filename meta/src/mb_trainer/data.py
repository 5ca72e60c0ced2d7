"""Input data: the tokenizer, and iterators of batches that start at the counters of the run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import lcm
from typing import Any

from megatron.core.process_groups_config import ProcessGroupCollection

from mb_config.schedule import sequences_after
from mb_data import (
    DatasetBuildContext,
    DatasetProvider,
    FIMTextCorpusConfig,
    FinetuningDataset,
    FinetuningDatasetConfig,
    GPTFIMDatasetConfig,
    PackedDataset,
    T5DatasetConfig,
    T5TextCorpusConfig,
    TextCorpusConfig,
    build_data_iterator,
    build_finetuning_datasets,
    dataset_sample_counts,
    load_saved_tokenizer,
    load_tokenizer,
    prepare_corpus,
    tokenize_corpus,
)
from mb_data.fim_build import build_fim_datasets
from mb_data.mcore import build_gpt_datasets
from mb_data.sample_counts import SampleCounts
from mb_data.t5_build import build_t5_datasets
from mb_data.tokenizers import Tokenizer, unwrap_tokenizer
from mb_loop import TrainState
from mb_loop.collectives import any_rank
from mb_loop.settings import evaluation_batch
from mb_trainer.config import ConfigContainer
from mb_trainer.validation import NamedDataset, as_loop_sets, build_sets, one_set, wants_sets
from mb_trainer.weights import kept_by_run


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """Tokenizer of a run."""

    tokenizer: Tokenizer


def build_vocabulary(
    config: ConfigContainer, *, progress: Callable[[str, int, int], None] | None = None
) -> Vocabulary:
    """Load the configured tokenizer and tokenize a text corpus with it, or let the corpus build its own tokenizer."""
    corpus = config.dataset if isinstance(config.dataset, TextCorpusConfig) else None
    if corpus is not None and config.tokenizer.tokenizer_type is None:
        file = prepare_corpus(corpus, progress=progress).tokenizer
        return Vocabulary(tokenizer=load_saved_tokenizer(file.parent, config.tokenizer))
    kept = kept_by_run(config)
    tokenizer = (
        load_tokenizer(config.tokenizer) if kept is None else load_saved_tokenizer(kept, config.tokenizer)
    )
    if corpus is not None:
        tokenize_corpus(corpus, unwrap_tokenizer(tokenizer), progress=progress)
    return Vocabulary(tokenizer=tokenizer)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSizes:
    """Average sizes of training samples of different lengths, without padding."""

    tokens: float
    """Tokens of a sample, or of all samples in a pack."""
    attention_length: float
    """Length of a sequence with the same attention per token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """Data iterators of a run; None for an absent split, and on pipeline stages that read no data."""

    train: Any
    valid: Any
    """Iterator, or the loop's validation sets."""
    test: Any
    has_valid: bool
    """Whether any rank has validation data; identical on all ranks."""
    has_test: bool
    sizes: SampleSizes | None = None
    """Sizes of training samples; None: every sample has the model's sequence length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batches:
    """Factory of this rank's batch iterators.

    Under interleaving an iterator is a list with one entry per chunk, all of which yield the same batches.
    """

    config: ConfigContainer
    groups: ProcessGroupCollection
    worker_init_fn: Callable[[int], None] | None

    def __call__(
        self, dataset: Any, *, consumed: int, micro_batch_size: int | None, global_batch_size: int | None
    ) -> Any:
        """Return an iterator that starts after the samples consumed by all ranks; None where no data is read."""
        if dataset is None or not (reads_data(self.groups) or packs(self.config)):
            return None
        step = (micro_batch_size or 1) * self.groups.dp.size()
        if self.config.train.decrease_batch_size_if_needed and global_batch_size:
            global_batch_size = global_batch_size // step * step
        chunks = [
            build_data_iterator(
                dataset,
                config=self.config.dataset,
                consumed_samples=consumed,
                micro_batch_size=micro_batch_size or 1,
                data_parallel_rank=self.groups.dp.rank(),
                data_parallel_size=self.groups.dp.size(),
                seed=self.config.rng.seed,
                global_batch_size=global_batch_size,
                worker_init_fn=self.worker_init_fn,
            )
            for _ in range(self.config.model.virtual_pipeline_model_parallel_size or 1)
        ]
        return chunks if len(chunks) > 1 else chunks[0]


def packs(config: ConfigContainer) -> bool:
    """Return whether samples are packed; every pipeline stage then reads the sequence boundaries."""
    dataset = config.dataset
    return isinstance(dataset, FinetuningDatasetConfig) and dataset.packed_sequence_specs is not None


def reads_data(groups: ProcessGroupCollection) -> bool:
    """Return whether this pipeline stage reads data: the first reads tokens, the last reads labels."""
    return groups.pp.rank() in (0, groups.pp.size() - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Splits:
    """Datasets of a run; None for an absent split, and on pipeline stages that read no data."""

    train: Any
    valid: Any
    test: Any
    valid_sets: Sequence[NamedDataset] | None = None
    """Complete or several validation sets, instead of `valid`; None: the validation data is one endless stream."""


def build_splits(
    config: ConfigContainer,
    *,
    vocabulary: Vocabulary,
    groups: ProcessGroupCollection,
    say: Callable[[str], None] | None = None,
) -> Splits:
    """Build the datasets without reading samples. Collective over the world.

    `say` receives a message on the lines of fine-tuning data.

    Raises:
        NotEnoughSamplesError: a dataset is too small.
        ValidationSetError: the validation sets do not match the settings.
    """
    config.dataset.finalize()
    counts = sample_counts(config)
    build = partial(
        build_datasets,
        vocabulary=vocabulary,
        groups=groups,
        reads=reads_data(groups),
        padding=padding_of(config.model),
        say=say,
    )
    if not wants_sets(config.validation):
        train, valid, test = build(config.dataset, counts)
        return Splits(train=train, valid=valid, test=test)
    train, _, test = build(config.dataset, replace(counts, valid=0))
    sets = build_validation_sets(config, counts, build=build)
    return Splits(train=train, valid=None, test=test, valid_sets=sets)


def build_validation_sets(
    config: ConfigContainer, counts: SampleCounts, *, build: Callable[..., Any]
) -> list[NamedDataset]:
    """Build complete or several validation sets; none if no evaluation is scheduled. Collective over the world."""
    validation = config.validation
    if not (validation.eval_interval or validation.skip_train):
        return []
    alone = SampleCounts(train=0, valid=max(1, counts.valid), test=0)
    return build_sets(config.dataset, validation, build=lambda section: build(section, alone)[1])


def own_position(config: ConfigContainer, splits: Splits, *, groups: ProcessGroupCollection) -> Any:
    """Return the training iterator of an external loader, at its start; None for other loaders.

    The counters of the run are the position of all other loaders. The iterator exists before a checkpoint is loaded,
    because the checkpoint may hold its position.
    """
    if config.dataset.dataloader_type != "external":
        return None
    return Batches(config=config, groups=groups, worker_init_fn=None)(
        splits.train,
        consumed=0,
        micro_batch_size=config.train.micro_batch_size,
        global_batch_size=config.train.global_batch_size,
    )


def build_data(
    config: ConfigContainer,
    splits: Splits,
    *,
    groups: ProcessGroupCollection,
    state: TrainState,
    worker_init_fn: Callable[[int], None] | None = None,
    positioned_train: Any = None,
) -> Data:
    """Build the iterators, positioned at the counters of `state`. Collective over the world.

    `positioned_train` is the iterator of `own_position`, its position restored.

    Raises:
        NotEnoughSamplesError: a complete validation set fills no batch.
    """
    train, validation = config.train, config.validation
    batches = Batches(config=config, groups=groups, worker_init_fn=worker_init_fn)
    evaluated = partial(
        batches,
        micro_batch_size=validation.eval_micro_batch_size or train.micro_batch_size,
        global_batch_size=evaluation_batch(config).samples,
    )
    test = evaluated(splits.test, consumed=0)
    if splits.valid_sets is None:
        valid: Any = evaluated(splits.valid, consumed=state.consumed_valid_samples)
        has_valid = any_rank(splits.valid is not None)
    else:
        valid = as_loop_sets(
            splits.valid_sets,
            batches=evaluated,
            batch_samples=evaluation_batch(config).samples,
            consumed_samples=state.consumed_valid_samples,
            eval_iters=None if validation.full_validation else validation.eval_iters or 0,
        )
        has_valid = bool(valid)
        test = one_set(test, batches=validation.eval_iters or 0)
    return Data(
        train=batches(
            splits.train,
            consumed=state.consumed_train_samples,
            micro_batch_size=train.micro_batch_size,
            global_batch_size=train.global_batch_size,
        )
        if positioned_train is None
        else positioned_train,
        valid=valid,
        test=test,
        has_valid=has_valid,
        has_test=any_rank(splits.test is not None),
        sizes=sample_sizes(splits.train),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Padding:
    """Padding of samples of different lengths, in addition to the longest of their micro-batch."""

    whole: bool
    """Pad to `seq_length`: pipeline stages and expert-parallel ranks exchange tensors of one size."""
    multiple: int
    """Pad to a multiple of this number, as required by sequence splits and by kernels that compute on blocks."""


def sample_sizes(dataset: Any) -> SampleSizes | None:
    """Return the average sizes of a dataset's samples, if they differ in length."""
    if not isinstance(dataset, FinetuningDataset | PackedDataset):
        return None
    return SampleSizes(tokens=dataset.mean_tokens, attention_length=dataset.attention_length)


def padding_of(model: Any) -> Padding:
    """Return the padding that the model's parallelism requires."""
    tp, cp = model.tensor_model_parallel_size, model.context_parallel_size
    cut = (
        2 * cp if cp > 1 else 1,
        cp * tp if model.sequence_parallel else 1,
        32 if model.fp8 or model.fp4 else 1,
    )
    return Padding(
        whole=model.pipeline_model_parallel_size > 1
        or model.expert_model_parallel_size > 1
        or model.tp_comm_overlap,
        multiple=lcm(*cut),
    )


def sample_counts(config: ConfigContainer) -> SampleCounts:
    """Count the samples that the run reads from each split; an evaluation-only run evaluates once."""
    train, validation = config.train, config.validation
    steps = train.train_iters or 0
    scheduled = train.step_batch_size_schedule is not None
    return dataset_sample_counts(
        steps,
        global_batch_size=train.global_batch_size or 0,
        eval_interval=validation.eval_interval or (steps + 1 if validation.skip_train else None),
        eval_iters=validation.eval_iters,
        eval_global_batch_size=validation.eval_global_batch_size,
        train_samples=sequences_after(steps, train, seq_length=config.model.seq_length)
        if scheduled
        else train.train_samples,
    )


def build_datasets(
    section: Any,
    counts: SampleCounts,
    *,
    vocabulary: Vocabulary,
    groups: ProcessGroupCollection,
    reads: bool,
    padding: Padding,
    say: Callable[[str], None] | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> tuple[Any, Any, Any]:
    """Build the train, validation and test datasets of a section with as many samples as the run reads."""
    context = DatasetBuildContext(
        train_samples=counts.train,
        valid_samples=counts.valid,
        test_samples=counts.test,
        tokenizer=vocabulary.tokenizer,
        pg_collection=groups,
        progress=progress,
    )
    if isinstance(section, FinetuningDatasetConfig):
        return build_finetuning_datasets(
            section, context, pad_to_multiple=padding.multiple, pad_to_max_length=padding.whole, log=say
        )
    if isinstance(section, DatasetProvider):
        return section.build_datasets(context)
    if isinstance(section, T5DatasetConfig | T5TextCorpusConfig):
        return build_t5_datasets(section, context, is_built_on_rank=lambda: reads)
    if isinstance(section, GPTFIMDatasetConfig | FIMTextCorpusConfig):
        return build_fim_datasets(section, context, is_built_on_rank=lambda: reads)
    return build_gpt_datasets(section, context, is_built_on_rank=lambda: reads)
