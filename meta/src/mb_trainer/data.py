"""What is read: the tokenizer, and iterators of batches that continue where the counters stand."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megatron.core.process_groups_config import ProcessGroupCollection

from mb_data import (
    DatasetBuildContext,
    DatasetProvider,
    TextCorpusConfig,
    build_data_iterator,
    dataset_sample_counts,
    load_tokenizer,
    prepare_corpus,
)
from mb_data.mcore import build_gpt_datasets
from mb_data.tokenizers import Tokenizer
from mb_loop import TrainState
from mb_trainer.config import ConfigContainer


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """The tokenizer of a run, and the file it came from, where there is one."""

    tokenizer: Tokenizer
    file: Path | None = None


def build_vocabulary(
    config: ConfigContainer, *, progress: Callable[[str, int, int], None] | None = None
) -> Vocabulary:
    """Load the tokenizer that the configuration names, or prepare the text corpus that brings its own."""
    if config.tokenizer.tokenizer_type is None and isinstance(config.dataset, TextCorpusConfig):
        file = prepare_corpus(config.dataset, progress=progress).tokenizer
        return Vocabulary(tokenizer=load_tokenizer(file), file=file)
    model = config.tokenizer.tokenizer_model
    return Vocabulary(tokenizer=load_tokenizer(config.tokenizer), file=Path(model) if model else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """Where a run reads; None for a split that is not there, and on pipeline stages that read nothing."""

    train: Any
    valid: Any
    test: Any


def build_data(
    config: ConfigContainer,
    *,
    vocabulary: Vocabulary,
    groups: ProcessGroupCollection,
    state: TrainState,
    worker_init_fn: Callable[[int], None] | None = None,
) -> Data:
    """Build the datasets and the iterators that continue at the counters of `state`. Collective over the world.

    Under interleaving each iterator is a list with one per chunk, all of which yield the same batches.
    """
    reads = groups.pp.rank() in (0, groups.pp.size() - 1)
    config.dataset.finalize()
    datasets = build_datasets(config, vocabulary=vocabulary, groups=groups, reads=reads)
    train, validation = config.train, config.validation
    eval_micro_batch_size = validation.eval_micro_batch_size or train.micro_batch_size

    def iterators(dataset: Any, *, consumed: int, micro_batch_size: int | None) -> Any:
        if dataset is None or not reads:
            return None
        chunks = [
            build_data_iterator(
                dataset,
                config=config.dataset,
                consumed_samples=consumed,
                micro_batch_size=micro_batch_size or 1,
                data_parallel_rank=groups.dp.rank(),
                data_parallel_size=groups.dp.size(),
                seed=config.rng.seed,
                worker_init_fn=worker_init_fn,
            )
            for _ in range(config.model.virtual_pipeline_model_parallel_size or 1)
        ]
        return chunks if len(chunks) > 1 else chunks[0]

    return Data(
        train=iterators(
            datasets[0], consumed=state.consumed_train_samples, micro_batch_size=train.micro_batch_size
        ),
        valid=iterators(
            datasets[1], consumed=state.consumed_valid_samples, micro_batch_size=eval_micro_batch_size
        ),
        test=iterators(datasets[2], consumed=0, micro_batch_size=eval_micro_batch_size),
    )


def build_datasets(
    config: ConfigContainer, *, vocabulary: Vocabulary, groups: ProcessGroupCollection, reads: bool
) -> tuple[Any, Any, Any]:
    """Build the train, validation and test datasets with as many samples as the run draws."""
    counts = dataset_sample_counts(
        config.train.train_iters or 0,
        global_batch_size=config.train.global_batch_size or 0,
        eval_interval=config.validation.eval_interval,
        eval_iters=config.validation.eval_iters,
        eval_global_batch_size=config.validation.eval_global_batch_size,
        train_samples=config.train.train_samples,
    )
    context = DatasetBuildContext(
        train_samples=counts.train,
        valid_samples=counts.valid,
        test_samples=counts.test,
        tokenizer=vocabulary.tokenizer,
        pg_collection=groups,
    )
    if isinstance(config.dataset, DatasetProvider):
        return config.dataset.build_datasets(context)
    return build_gpt_datasets(config.dataset, context, is_built_on_rank=lambda: reads)
