"""Checks of the files that data sections name, before anything is built. No torch."""

from collections.abc import Sequence
from copy import deepcopy
from glob import glob
from pathlib import Path
from typing import Any, Protocol

import mb_data
from mb_data.config import GPTDatasetConfig, TextCorpusConfig
from mb_data.errors import DataError, DataPathError, IndexedFormatError, TokenizerError
from mb_data.finetuning.config import FinetuningDatasetConfig
from mb_data.finetuning.files import pack_files, sample_files
from mb_data.loading.batch_padding import NO_PADDING, BatchPadding, required_padding
from mb_data.streaming.config import HuggingFaceStreamConfig
from mb_data.text.sources import verify_sources
from mb_data.tokenizers.config import TokenizerConfig
from mb_data.tokenizers.loading import load_saved_tokenizer
from mb_data.tokenizers.rules import END_OF_DOCUMENT
from mb_schema.rules import MAX_MESSAGE_LENGTH, truncate

_STREAM_FORMATS = ("json", "csv", "parquet", "text", "arrow")
"""Values of `hf_dataset` that are formats of files; the files of another dataset are relative to it."""


class RunSections(Protocol):
    """Sections of a configuration that determine the length of an epoch."""

    tokenizer: TokenizerConfig
    dataset: Any
    train: Any
    """Its `num_epochs` is the length of the run in epochs, or None."""
    model: Any
    """See `mb_data.loading.batch_padding.PaddedModel`."""


def verify_dataset_files(dataset: Any, *, evaluated: bool) -> None:
    """Check every file that a finalized dataset section names. Custom dataset providers are not checked.

    Args:
        dataset: Dataset section.
        evaluated: Whether the run evaluates, so that it reads the validation and test files of fine-tuning data.

    Raises:
        DataPathError: A path does not exist, or one of a `.bin`/`.idx` pair is missing.
        IndexedFormatError: A file does not have the format of its name, or is truncated.
        CorpusError: Sources have no text, or too few files with text.
    """
    if isinstance(dataset, FinetuningDatasetConfig):
        _verify_samples(dataset, evaluated=evaluated)
    if isinstance(dataset, HuggingFaceStreamConfig):
        _verify_stream_files(dataset)
    if not isinstance(dataset, GPTDatasetConfig):
        return
    blends = filter(None, [dataset.blend, *(dataset.blend_per_split or [])])
    _verify_prefixes([prefix for prefixes, _ in blends for prefix in prefixes])
    if isinstance(dataset, TextCorpusConfig):
        verify_sources(dataset)


def tokenizer_size(section: TokenizerConfig, dataset: Any, *, saved: Path | None = None) -> int:
    """Return the number of tokens of the tokenizer, or of the text corpus that builds its own.

    Reads the tokenizer's files and imports the library for them, neither torch nor Megatron.

    Args:
        section: Tokenizer section.
        dataset: Dataset section.
        saved: Folder of a tokenizer that a run has saved, which is read in place of the files of `section`.

    Raises:
        DataPathError: A file does not exist.
        TokenizerError: It cannot be read, or its library is not installed.
    """
    if section.tokenizer_type is None and isinstance(dataset, TextCorpusConfig):
        added = {*(section.special_tokens or ())} - {END_OF_DOCUMENT}
        return dataset.vocab_size + len(added) + section.vocab_extra_ids
    tokenizer = load_saved_tokenizer(saved, section)
    return int(tokenizer.vocab_size)


def tokenizer_facts(
    section: TokenizerConfig, dataset: Any, *, saved: Path | None = None
) -> dict[str, object]:
    """Return `tokenizer_entries`, the size of the tokenizer, or `tokenizer_error`, the reason why it cannot be read.

    Arguments as for `tokenizer_size`.
    """
    try:
        return {"tokenizer_entries": tokenizer_size(section, dataset, saved=saved)}
    except (OSError, TokenizerError) as error:
        return {"tokenizer_error": truncate(str(error), MAX_MESSAGE_LENGTH)}


def dataset_facts(dataset: Any, *, evaluated: bool) -> dict[str, object]:
    """Return `dataset_error`, the reason why the files of a dataset section cannot be read; empty if they can.

    Arguments as for `verify_dataset_files`. The section is not changed.
    """
    if not isinstance(dataset, GPTDatasetConfig | FinetuningDatasetConfig | HuggingFaceStreamConfig):
        return {}
    section = deepcopy(dataset)
    try:
        section.finalize()
        verify_dataset_files(section, evaluated=evaluated)
    except (OSError, DataError) as error:
        return {"dataset_error": truncate(str(error), MAX_MESSAGE_LENGTH)}
    return {}


def epoch_facts(config: RunSections, *, saved: Path | None = None) -> dict[str, object]:
    """Return `training_samples`, the sequences of one epoch, or `training_samples_error`, why they cannot be counted.

    Empty if the length of the run is not set in epochs, and for other than fine-tuning data.

    Args:
        config: Sections of the run.
        saved: Folder of a tokenizer that a run has saved, which is read in place of the configured files.
    """
    if config.train.num_epochs is None or not isinstance(config.dataset, FinetuningDatasetConfig):
        return {}
    padding = required_padding(config.model)
    try:
        size = training_epoch_samples(config.tokenizer, config.dataset, padding=padding, saved=saved)
    except (OSError, DataError) as error:
        return {"training_samples_error": truncate(str(error), MAX_MESSAGE_LENGTH)}
    return {"training_samples": size}


def training_epoch_samples(
    section: TokenizerConfig,
    dataset: FinetuningDatasetConfig,
    *,
    padding: BatchPadding = NO_PADDING,
    saved: Path | None = None,
) -> int:
    """Return the number of training sequences of one epoch of fine-tuning data.

    Tokenizes and packs the samples if they are not in the cache. Imports neither torch nor Megatron.

    Args:
        section: Tokenizer section.
        dataset: Dataset section.
        padding: Padding that the model requires, which changes the number of packs.
        saved: Folder of a tokenizer that a run has saved, which is read in place of the files of `section`.

    Raises:
        DataError: Tokenizer or samples cannot be read, as `mb_data.finetuning.split_samples.training_epoch_size`.
    """
    from mb_data.finetuning.split_samples import training_epoch_size  # noqa: PLC0415 - numpy, which other checks do not need

    tokenizer = load_saved_tokenizer(saved, section)
    return training_epoch_size(dataset, tokenizer, padding=padding)


def _verify_prefixes(prefixes: Sequence[str]) -> None:
    """Check every pair of files; one error names all that cannot be read."""
    wrong: dict[str, DataPathError | IndexedFormatError] = {}
    for prefix in prefixes:
        if "://" in prefix:  # object storage is not read before the run
            continue
        try:
            mb_data.verify_prefix(prefix)  # imports numpy, which checks without data files do not need
        except (DataPathError, IndexedFormatError) as error:
            wrong.setdefault(prefix, error)
    if not wrong:
        return
    (_, first), *others = wrong.items()
    if not others:
        raise first
    raise type(first)(
        f"{first} {len(others)} more cannot be read: {', '.join(prefix for prefix, _ in others)}."
    )


def _verify_samples(dataset: FinetuningDatasetConfig, *, evaluated: bool) -> None:
    """Check that the files of fine-tuning data exist; those of validation and test only if a run evaluates."""
    has_no_folder = not dataset.dataset_root and (dataset.made_up or dataset.hf_dataset is not None)
    is_read_split = {
        "training": True,
        "validation": dataset.do_validation and evaluated,
        "test": dataset.do_test and evaluated,
    }
    for split in (name for name, is_read in is_read_split.items() if is_read):
        if not pack_files(dataset, split) and not has_no_folder:
            sample_files(dataset, split)


def _verify_stream_files(config: HuggingFaceStreamConfig) -> None:
    """Check that each local path or pattern of `hf_data_files` names a file. URLs are not checked."""
    named = config.hf_data_files if config.hf_dataset in _STREAM_FORMATS else None
    for pattern in [named] if isinstance(named, str) else named or []:
        if "://" not in pattern and not glob(pattern, recursive=True):  # noqa: PTH207 - may be absolute
            raise DataPathError(
                f"dataset.hf_data_files: no file matches {pattern!r}. The documents are read from it. Correct the path."
            )
