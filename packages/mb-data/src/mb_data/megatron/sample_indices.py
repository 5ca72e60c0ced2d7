"""Data preparation ahead of a run: corpus, tokenizer and sample indices, on a CPU. Requires torch."""

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mb_data.config import GPTDatasetConfig
from mb_data.dataset_provider import DatasetBuildContext
from mb_data.errors import NothingToIndexError
from mb_data.loading.validation_sets import ONE_STREAM, ValidationSetOptions
from mb_data.megatron.sample_counts import SampleCounts
from mb_data.progress import Progress
from mb_data.run_data import RunDatasets, build_run_datasets
from mb_data.tokenizers.base import Tokenizer
from mb_data.tokenizers.config import TokenizerConfig
from mb_data.tokenizers.run_tokenizer import prepare_tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexRequest:
    """Settings of a run on which its sample indices depend."""

    name: str
    """Name of the run in the output."""

    section: Any
    """The dataset section."""

    tokenizer: TokenizerConfig
    counts: SampleCounts
    """Samples that the run reads."""

    validation: ValidationSetOptions = ONE_STREAM
    """Division of the validation data into sets; by default one endless stream."""

    tokenizer_folder: Path | None = None
    """Folder in which the tokenizer is saved; None: the files that its section names."""

    def load_tokenizer(self, *, progress: Progress | None = None) -> Tokenizer:
        """Return the tokenizer of the run; a text corpus is tokenized. Raises as `prepare_tokenizer`."""
        return prepare_tokenizer(
            self.section, self.tokenizer, saved_in=self.tokenizer_folder, progress=progress
        )

    def build(
        self, tokenizer: Tokenizer, *, workers: int | None = None, progress: Progress | None = None
    ) -> RunDatasets:
        """Build the datasets of the run in this process. The section is not modified.

        Args:
            tokenizer: The tokenizer.
            workers: Threads that build the indices of a blend's datasets; None: as the section sets.
            progress: Called with the stage, the finished amount and the total.
        """
        section, counts = copy.copy(self.section), self.counts
        if workers is not None:
            section.num_dataset_builder_threads = workers
        context = DatasetBuildContext(
            train_samples=counts.train,
            valid_samples=counts.valid,
            test_samples=counts.test,
            tokenizer=tokenizer,
            progress=progress,
        )
        return build_run_datasets(section, context, validation=self.validation)


def build_sample_indices(
    request: IndexRequest, *, workers: int, progress: Progress | None = None
) -> SampleCounts:
    """Build or find everything that a run needs before its first step, in this process. Return the numbers of samples.

    The run finds the files again, because their names depend on the data, the tokenizer, the number of samples and the
    settings, but not on the number of processes. Validation sets are counted together.

    Args:
        request: The section is not modified.
        workers: Threads that build the indices of a blend's datasets.
        progress: Called with the stage, the finished amount and the total.

    Raises:
        NothingToIndexError: The data has no indices.
        The errors of `prepare_tokenizer` and of `build_run_datasets`.
    """
    if not isinstance(request.section, GPTDatasetConfig):
        raise NothingToIndexError(
            f"dataset: a {type(request.section).__name__} has no sample indices, which only data of .bin and .idx "
            "files has. Start the run; it has nothing to wait for."
        )
    tokenizer = request.load_tokenizer(progress=progress)
    built = request.build(tokenizer, workers=workers, progress=progress)
    valid = (
        [built.valid] if built.valid_sets is None else [valid_set.dataset for valid_set in built.valid_sets]
    )
    return SampleCounts(train=_size(built.train), valid=sum(map(_size, valid)), test=_size(built.test))


def _size(dataset: Any) -> int:
    return 0 if dataset is None else len(dataset)
