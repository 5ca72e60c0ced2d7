"""Input data of a run: its datasets, and iterators of batches that start at its counters. Requires torch.

The datasets are built first, so that unusable data is rejected before the cost of building a model. The iterators are
built after a checkpoint is loaded, because its counters are their position.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from mb_data.collectives import Gather, gather_from_all_ranks
from mb_data.dataset_provider import DatasetBuildContext, DatasetProvider
from mb_data.finetuning.blend import BlendedFinetuningDataset
from mb_data.finetuning.dataset import FinetuningDataset
from mb_data.finetuning.packing import PackedDataset
from mb_data.loading.batch_iterators import ONE_RANK, BatchIterators, BatchSettings, DataRanks
from mb_data.loading.validation_sets import (
    ONE_STREAM,
    NamedDataset,
    ValidationBatches,
    ValidationSetOptions,
    build_validation_sets,
    validation_batches,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSizes:
    """Average sizes of training samples of different lengths, without padding."""

    tokens: float
    """Tokens of a sample, or of all samples in a pack."""

    length_counts: Mapping[float, float]
    """Number of samples of each length, averaged over samples or packs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunData:
    """Data iterators of a run; None for an absent split, and on pipeline stages that read no data."""

    train: Any

    valid: Any
    """Iterator, or a list of `ValidationBatches` if the validation data has sets."""

    test: Any
    """Iterator, or a list of one `ValidationBatches` if the validation data has sets."""

    has_valid: bool
    """Whether any rank has validation data; identical on all ranks."""

    has_test: bool
    """Whether any rank has test data; identical on all ranks."""

    sizes: SampleSizes | None = None
    """Sizes of training samples; None: every sample has the same length."""

    close: Callable[[], None]
    """Stops the worker processes of all iterators, which cannot be used afterwards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDatasets:
    """Datasets of a run; None for an absent split, and on ranks that read no data."""

    section: DatasetProvider
    train: Any
    valid: Any
    test: Any
    valid_sets: Sequence[NamedDataset] | None = None
    """Validation sets, instead of `valid`; None: the validation data is one endless stream."""

    complete_validation: bool = False
    """Each validation set is read completely in every evaluation."""

    def loaders(
        self,
        settings: BatchSettings,
        *,
        ranks: DataRanks = ONE_RANK,
        worker_init_fn: Callable[[int], None] | None = None,
        gather: Gather = gather_from_all_ranks,
    ) -> "RunLoaders":
        """Return the loaders of this rank, without a position.

        Args:
            settings: Batch sizes and seed.
            ranks: Position of this rank.
            worker_init_fn: Called with the worker id at the start of each worker process.
            gather: All-gather of one value per rank.
        """
        batches = BatchIterators(
            section=self.section, settings=settings, ranks=ranks, worker_init_fn=worker_init_fn
        )
        is_external = self.section.dataloader_type == "external"
        external = batches.train(self.train, consumed_samples=0) if is_external else None
        return RunLoaders(datasets=self, batches=batches, external=external, gather=gather)


class DataCounters(Protocol):
    """Counters of a run that its data concern, such as `mb_loop.TrainState`."""

    do_valid: bool
    """Whether there is a validation set, on any rank."""
    do_test: bool
    """Whether there is a test set, on any rank."""

    @property
    def consumed_train_samples(self) -> int:
        """Training samples consumed by all ranks."""

    @property
    def consumed_valid_samples(self) -> int:
        """Validation samples consumed by all ranks, over all sets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLoaders:
    """Loaders of the datasets of a run on one rank, built before the position in the data is known."""

    datasets: RunDatasets
    batches: BatchIterators
    external: Any
    """Training iterator of an external loader, at its start; None for other loaders.

    A checkpoint may hold its position, which is restored before training. The position of all other loaders is the
    number of consumed samples.
    """

    gather: Gather

    def resume(self, counters: DataCounters) -> RunData:
        """Return this rank's iterators at the counters of a run, and set which evaluations it has in these.

        Collective over the world. For a new run the counters are 0. Errors as `iterators`.
        """
        data = self.iterators(
            consumed_train_samples=counters.consumed_train_samples,
            consumed_valid_samples=counters.consumed_valid_samples,
        )
        counters.do_valid, counters.do_test = data.has_valid, data.has_test
        return data

    def iterators(self, *, consumed_train_samples: int = 0, consumed_valid_samples: int = 0) -> RunData:
        """Return this rank's iterators, positioned at the counters of the run. Collective over the world.

        Args:
            consumed_train_samples: Training samples consumed by all ranks.
            consumed_valid_samples: Validation samples consumed by all ranks, over all sets.

        Raises:
            NotEnoughSamplesError: A dataset is too small, or a complete validation set fills no batch.
        """
        data, batches = self.datasets, self.batches
        has_split = self.gather((data.valid is not None, data.test is not None))
        test = batches.evaluation(data.test, consumed_samples=0)
        valid: Any
        if data.valid_sets is None:
            # Its length is that of the run's settings, which may have been others when the samples were consumed.
            valid = batches.evaluation(data.valid, consumed_samples=consumed_valid_samples, repeats=True)
        else:
            valid = self._validation_batches(data.valid_sets, consumed_valid_samples)
            test = [ValidationBatches.of_stream(test, batches=batches.settings.eval_iters)]
        train = self.external
        if train is None:
            train = batches.train(data.train, consumed_samples=consumed_train_samples)
        return RunData(
            train=train,
            valid=valid,
            test=test,
            has_valid=any(valid for valid, _ in has_split) if data.valid_sets is None else bool(valid),
            has_test=any(test for _, test in has_split),
            sizes=sample_sizes(data.train),
            close=batches.close,
        )

    def _validation_batches(
        self, sets: Sequence[NamedDataset], consumed_samples: int
    ) -> list[ValidationBatches]:
        settings = self.batches.settings
        ranks_batch = settings.micro_batch_size * self.batches.ranks.data_parallel_size
        return validation_batches(
            sets,
            iterate=self.batches.evaluation,
            batch_samples=settings.eval_global_batch_size or settings.global_batch_size or ranks_batch,
            consumed_samples=consumed_samples,
            eval_iters=None if self.datasets.complete_validation else settings.eval_iters,
            gather=self.gather,
        )


def build_run_datasets(
    section: DatasetProvider,
    context: DatasetBuildContext,
    *,
    validation: ValidationSetOptions = ONE_STREAM,
    gather: Gather = gather_from_all_ranks,
) -> RunDatasets:
    """Build the datasets of a run without reading samples. Collective over the world.

    Args:
        section: The dataset section; finalized in place.
        context: Sample counts of the splits, tokenizer, and what the section's builder needs.
        validation: Division of the validation data into sets; by default one endless stream.
        gather: All-gather of one value per rank.

    Raises:
        ConfigError: The section violates rules.
        NotEnoughSamplesError: A dataset is too small.
        ValidationDataError: The validation data does not have these sets.
        The errors of the section's builder.
    """
    section.finalize()
    if not validation.has_sets:
        train, valid, test = section.build_datasets(context)
        return RunDatasets(section=section, train=train, valid=valid, test=test)
    train, _, test = section.build_datasets(replace(context, valid_samples=0))
    return RunDatasets(
        section=section,
        train=train,
        valid=None,
        test=test,
        valid_sets=build_validation_sets(section, context, validation, gather=gather),
        complete_validation=validation.complete,
    )


def sample_sizes(dataset: Any) -> SampleSizes | None:
    """Return the average sizes of a dataset's samples, if they differ in length."""
    if not isinstance(dataset, FinetuningDataset | PackedDataset | BlendedFinetuningDataset):
        return None
    return SampleSizes(tokens=dataset.mean_tokens, length_counts=dataset.length_counts)
