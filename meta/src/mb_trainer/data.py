"""What is read: the tokenizer, and iterators of batches that continue where the counters stand."""

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
    """The tokenizer of a run."""

    tokenizer: Tokenizer


def build_vocabulary(
    config: ConfigContainer, *, progress: Callable[[str, int, int], None] | None = None
) -> Vocabulary:
    """Load the tokenizer that the configuration names and tokenize a text corpus by it, or let that bring its own."""
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
    """How large training samples of different lengths are, on the average and without padding."""

    tokens: float
    """Tokens of a sample, or of the samples in a pack."""
    attention_length: float
    """Length of a sequence that has as much attention per token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """Where a run reads; None for a split that is not there, and on pipeline stages that read nothing."""

    train: Any
    valid: Any
    """An iterator, or the loop's validation sets."""
    test: Any
    has_valid: bool
    """Whether any rank has data for validation; alike on all of them."""
    has_test: bool
    sizes: SampleSizes | None = None
    """None: every sample has as many tokens as the model reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batches:
    """Makes iterators of this rank's batches.

    Under interleaving an iterator is a list with one per chunk, all of which yield the same batches.
    """

    config: ConfigContainer
    groups: ProcessGroupCollection
    worker_init_fn: Callable[[int], None] | None

    def __call__(
        self, dataset: Any, *, consumed: int, micro_batch_size: int | None, global_batch_size: int | None
    ) -> Any:
        """Return what goes on behind the samples that all ranks have consumed; None where there is nothing to read."""
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
    """Say whether samples are packed; then every pipeline stage reads where they begin."""
    dataset = config.dataset
    return isinstance(dataset, FinetuningDatasetConfig) and dataset.packed_sequence_specs is not None


def reads_data(groups: ProcessGroupCollection) -> bool:
    """Say whether this pipeline stage reads data: the first for its tokens, the last for its labels."""
    return groups.pp.rank() in (0, groups.pp.size() - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Splits:
    """The datasets of a run; None for a split that is not there, and on pipeline stages that read nothing."""

    train: Any
    valid: Any
    test: Any
    valid_sets: Sequence[NamedDataset] | None = None
    """Whole or several validation sets, in the place of `valid`; None: the validation data is one endless stream."""


def build_splits(
    config: ConfigContainer,
    *,
    vocabulary: Vocabulary,
    groups: ProcessGroupCollection,
    say: Callable[[str], None] | None = None,
) -> Splits:
    """Build the datasets, of which nothing is read yet. Collective over the world.

    `say` is told what became of the lines of fine-tuning data.

    Raises:
        NotEnoughSamplesError: a dataset is too small.
        ValidationSetError: the validation sets are not those that the settings ask for.
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
    """Build whole or several validation sets, none where no evaluation is due. Collective over the world."""
    validation = config.validation
    if not (validation.eval_interval or validation.skip_train):
        return []
    alone = SampleCounts(train=0, valid=max(1, counts.valid), test=0)
    return build_sets(config.dataset, validation, build=lambda section: build(section, alone)[1])


def own_position(config: ConfigContainer, splits: Splits, *, groups: ProcessGroupCollection) -> Any:
    """Return the training iterator of an external loader, at its start; None elsewhere: counters say where others are.

    It is there before a checkpoint is loaded, which may hold its position.
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
    """Build the iterators that continue at the counters of `state`. Collective over the world.

    `positioned_train` is what `own_position` returned, put where it stood by now.

    Raises:
        NotEnoughSamplesError: a whole validation set fills no batch.
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
    """How far samples of different lengths are padded, besides to the longest of their micro-batch."""

    whole: bool
    """To `seq_length`: stages of a pipeline and ranks with other experts exchange tensors of one size."""
    multiple: int
    """To a multiple of this, which what cuts a sequence, or computes on blocks of it, can take."""


def sample_sizes(dataset: Any) -> SampleSizes | None:
    """Return how large the samples of a dataset are, where they differ."""
    if not isinstance(dataset, FinetuningDataset | PackedDataset):
        return None
    return SampleSizes(tokens=dataset.mean_tokens, attention_length=dataset.attention_length)


def padding_of(model: Any) -> Padding:
    """Return the padding that a model's layout needs."""
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
    """Count the samples of each split that the run draws; a run that only evaluates does so once."""
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
    """Build the train, validation and test datasets of a section with as many samples as the run draws."""
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
