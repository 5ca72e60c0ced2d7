"""Construction of Megatron Core's GPT datasets from the dataset section."""

import copy
import hashlib
import logging
import socket
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import MockGPTDataset
from megatron.core.tokenizers import MegatronTokenizerBase

from mb_data.collectives import gather_from_all_ranks, is_rank_zero, own_rank, rank_zero_first
from mb_data.config import DatasetBuildContext, GPTDatasetConfig, TextCorpusConfig
from mb_data.dataset_provider import DatasetSplits
from mb_data.errors import DataPathError, DatasetError, NotEnoughSamplesError, TokenizerError
from mb_data.loading.mapped_files import allow_open_files
from mb_data.megatron.blend import SPLITS, Blend
from mb_data.megatron.cached_indices import require_numeric_arrays
from mb_data.megatron.conversion import drop_validation_weights, megatron_config, prefixes_of
from mb_data.megatron.fingerprint import PairState, content_digest, pair_states
from mb_data.megatron.gpt_dataset import GPTDataset
from mb_data.megatron.index_build import build_indices
from mb_data.megatron.recorded_blend import find_record, is_recordable, open_record, record_datasets
from mb_data.megatron.tokenizer import MegatronTokenizer, as_megatron
from mb_data.progress import Progress
from mb_data.text.corpus import TokenizedCorpus, prepare_corpus, tokenize_corpus
from mb_data.text.indexed import sequence_lengths
from mb_data.text.shards.manifest import count_files
from mb_data.tokenizers.base import Tokenizer, unwrap_tokenizer
from mb_data.tokenizers.loading import load_tokenizer

_PROGRESS_STAGE = "build sample indices"


def build_gpt_datasets(
    config: GPTDatasetConfig,
    context: DatasetBuildContext,
) -> DatasetSplits:
    """Build Megatron's GPT datasets for training, validation and test.

    Collective over the default process group, if it is initialized: rank 0 builds the sample indices, the other ranks
    load them. On a machine whose cache lacks them, one rank builds them. Samples are dictionaries with `tokens`,
    `labels`, `position_ids` (int64, [seq_length]), `loss_mask` (float32, [seq_length]) and, unless
    `skip_getting_attention_mask_from_dataset` is set, `attention_mask`.

    A text corpus is tokenized first, with the given tokenizer or one trained on the corpus: rank 0 tokenizes, then the
    other ranks load the result. The indices are cached in a folder named by the fingerprint of the data, so that
    indices of data that has changed are not reused.

    With `full_validation` the validation dataset is one epoch over its split, each sequence once, for any number of
    validation samples above 0. The weights of its prefixes are ignored.

    Args:
        config: The dataset section; not modified.
        context: Sample counts of the splits, the tokenizer unless the section has one or the corpus trains one, and
            whether this rank reads data.

    Returns:
        Train, validation and test; None if no samples are requested, if the ratio of the split is 0, or if this rank
        reads no data.

    Raises:
        ConfigError: The section contradicts itself.
        DataPathError: The files of a rank have other documents than those of rank 0.
        IndexedFormatError: A cached index contains Python objects instead of numbers. Access to a sample raises it too,
            if a token is not in the vocabulary of the tokenizer.
        NotEnoughSamplesError: A split has no tokens, an unweighted blend has fewer samples than requested, or
            `mid_level_dataset_surplus` is too small for a weighted one.
        OpenFilesError: The datasets keep more files open than this process may open.
        PermissionError: The folder for the indices cannot be written.
        TokenizerError: The tokenizer for a text corpus is one of Megatron's.
        DatasetError: There is no tokenizer, the installed Megatron Core does not have a setting, or `full_validation`
            is combined with other splits of the same weighted blend.
    """
    samples = [context.train_samples, context.valid_samples, context.test_samples]
    config = _resolve(config, context)
    if not any(samples):
        return None, None, None
    sizes: list[int | None] = list(samples)
    if config.full_validation and context.valid_samples:
        sizes[1] = None
        drop_validation_weights(config, only_validation=not (context.train_samples or context.test_samples))
    built = _build_splits(config, context, samples=samples, sizes=sizes)
    for split, dataset, size in zip(SPLITS, built, sizes, strict=True):
        _require_samples(dataset, split=split, num_samples=size or 0)
    return built[0], built[1], built[2]


def _build_splits(
    config: GPTDatasetConfig, context: DatasetBuildContext, *, samples: list[int], sizes: list[int | None]
) -> list[Any]:
    """Return the dataset of each split: as recorded by an earlier start, or else built. None makes one epoch."""
    if context.reads_data:
        allow_open_files(_mapped_files(config, samples), purpose="dataset.data_path")
    with _suppress_notices():
        pairs = pair_states(prefixes_of(config)) if context.reads_data else {}
        content = content_on_all_ranks(prefixes_of(config), pairs, reads_data=context.reads_data)
        core_config = megatron_config(
            config, samples, pairs=pairs, content=content, reads_data=context.reads_data
        )
        if not is_recordable(core_config):
            return _build_with_megatron(core_config, context, sizes)
        record = find_record(core_config, sizes, reads_data=context.reads_data)
        if record is not None:
            if context.progress is not None and record.parts:
                context.progress(_PROGRESS_STAGE, record.parts, record.parts)
            return open_record(record, core_config, pairs=pairs, quiet=_suppress_notices)
        built = _build_with_megatron(core_config, context, sizes)
        if context.reads_data and is_rank_zero():
            record_datasets(core_config, sizes, built)
        return built


def _build_with_megatron(config: Any, context: DatasetBuildContext, sizes: list[int | None]) -> list[Any]:
    """Build the datasets with Megatron's builder. Ranks that read data check their files first. Collective."""
    if not context.reads_data:
        return build_indices(lambda: [None] * len(SPLITS), folder=None)
    folder = None if config.path_to_cache is None else Path(config.path_to_cache)
    if folder is not None:
        require_numeric_arrays(folder)
    _require_tokens(config)
    kind = MockGPTDataset if config.mock else GPTDataset
    dataset_class = _with_progress(kind, context.progress, config, sizes)
    builder = BlendedMegatronDatasetBuilder(dataset_class, sizes, lambda: True, config)
    try:
        return build_indices(lambda: list(builder.build()), folder=folder)
    except IndexError as error:
        # Small shares are rounded up, so that a large one may exceed the samples of its dataset.
        raise NotEnoughSamplesError(
            f"dataset.mid_level_dataset_surplus: {config.mid_level_dataset_surplus} is too small for the weights of "
            f"the blend and these numbers of samples ({error}). Increase it, or draw more samples."
        ) from error


def content_on_all_ranks(
    prefixes: Sequence[str], pairs: Mapping[str, PairState], *, reads_data: bool
) -> str | None:
    """Return the digest of the content of data files, which one rank of each machine computes. Collective.

    Args:
        prefixes: Paths of the pairs.
        pairs: State of each pair on this machine.
        reads_data: Whether this rank reads data; None is returned if it does not.

    Raises:
        DataPathError: The files differ between machines.
    """
    files = repr((socket.gethostname(), prefixes, sorted(pairs.items()))).encode()
    local_files = hashlib.sha256(files).hexdigest() if reads_data else None
    files_by_rank = gather_from_all_ranks(local_files)
    computes = reads_data and files_by_rank.index(local_files) == own_rank()
    computed = gather_from_all_ranks(content_digest(prefixes, pairs) if computes else None)
    by_files = dict(
        zip(reversed(files_by_rank), reversed(computed), strict=True)
    )  # the first of equal ones remains
    digests = [None if each is None else by_files[each] for each in files_by_rank]
    mismatched = [rank for rank, digest in enumerate(digests) if digest not in (None, digests[0])]
    if digests[0] is not None and mismatched:
        raise DataPathError(
            f"dataset: the files {', '.join(prefixes[:3])}... of rank {mismatched[0]} have other documents "
            "than those of rank 0, so the ranks would train on different data. Copy the same files to each machine, or "
            "use a folder that all of them share."
        )
    return digests[own_rank()]


def _mapped_files(config: GPTDatasetConfig, samples: Sequence[int]) -> int:
    """Return the files that stay mapped: those of each pair, and three indices of each split of it."""
    splits = sum(1 for count in samples if count)
    if config.blend_per_split is not None:
        blends = [
            blend for blend, count in zip(config.blend_per_split, samples, strict=True) if blend and count
        ]
        return sum(count_files(prefix) + 3 for prefixes, _ in blends for prefix in prefixes)
    return 0 if config.blend is None else sum(count_files(prefix) + 3 * splits for prefix in config.blend[0])


def corpus_blends(config: TextCorpusConfig, tokenizer: Tokenizer) -> list[Blend | None]:
    """Return the `blend_per_split` of a text corpus tokenized by a tokenizer, without its added tokens.

    Rank 0 tokenizes the corpus, the other ranks load it from the cache. Collective over the default process group, if
    it is initialized.

    Raises:
        The exceptions of `tokenize_corpus`.
    """
    corpus = rank_zero_first(lambda: tokenize_corpus(config, unwrap_tokenizer(tokenizer)))
    return _corpus_blends(corpus)


def build_texts(
    config: GPTDatasetConfig, context: DatasetBuildContext, *, tokenizer: Tokenizer, **changes: Any
) -> DatasetSplits:
    """Build the GPT datasets with the fields of a section that extends the GPT section. Collective.

    A text corpus is tokenized first.

    Args:
        config: The section; not modified.
        context: Sample counts of the splits.
        tokenizer: Tokenizer of the texts, instead of the one in the context.
        changes: Fields of the GPT section that differ from those of `config`.

    Raises:
        The exceptions of `build_gpt_datasets` and `tokenize_corpus`.
    """
    values = {field.name: getattr(config, field.name) for field in fields(GPTDatasetConfig) if field.init}
    values |= {"tokenizer": None, **changes}
    if isinstance(config, TextCorpusConfig):
        values["blend_per_split"] = corpus_blends(config, tokenizer)
    return build_gpt_datasets(GPTDatasetConfig(**values), replace(context, tokenizer=tokenizer))


def _corpus_blends(corpus: TokenizedCorpus) -> list[Blend | None]:
    prefixes = (corpus.train, corpus.valid, corpus.test)
    return [None if prefix is None else ([prefix], None) for prefix in prefixes]


def _resolve(config: GPTDatasetConfig, context: DatasetBuildContext) -> GPTDatasetConfig:
    """Return a finalized copy of the section, with a Megatron tokenizer and the prefixes of a text corpus."""
    config = copy.copy(config)
    config.finalize()
    tokenizer = config.tokenizer or context.tokenizer
    if isinstance(config, TextCorpusConfig):
        if tokenizer is None:
            prepared = rank_zero_first(lambda: prepare_corpus(config))
            tokenizer = load_tokenizer(prepared.tokenizer)
            config.blend_per_split = _corpus_blends(prepared)
        else:
            config.blend_per_split = corpus_blends(config, _package_tokenizer(tokenizer))
    if tokenizer is None:
        raise DatasetError(
            "dataset: no tokenizer; it defines the vocabulary and the end-of-document id. "
            "Set the tokenizer of the build context."
        )
    config.tokenizer = tokenizer if isinstance(tokenizer, MegatronTokenizerBase) else as_megatron(tokenizer)
    return config


def _package_tokenizer(tokenizer: Any) -> Tokenizer:
    """Return the tokenizer of this package that tokenizes a text corpus."""
    if isinstance(tokenizer, MegatronTokenizer):
        return tokenizer.wrapped
    if isinstance(tokenizer, MegatronTokenizerBase):
        raise TokenizerError(
            f"dataset: a text corpus cannot be tokenized by Megatron's {type(tokenizer).__name__}, because it has no "
            "fingerprint for the cache. Use load_tokenizer with its tokenizer.json, or omit the tokenizer to train one."
        )
    return tokenizer  # type: ignore[no-any-return]  # a custom tokenizer; missing methods fail at the first text


def _require_tokens(config: Any) -> None:
    """Reject a part of a split without tokens, for which Megatron would add epochs in an endless loop.

    A prefix of a blend without weights is read once, and Megatron requires at least one sequence of it.
    """
    if config.blend is not None:
        parts = [(split, config.blend, part) for split, part in zip(SPLITS, config.split_matrix, strict=True)]
    else:
        per_split = config.blend_per_split or (None, None, None)
        parts = [(split, blend, (0.0, 1.0)) for split, blend in zip(SPLITS, per_split, strict=True) if blend]
    for split, (prefixes, weights), part in parts:
        required = 1
        if weights is None and len(prefixes) > 1:
            keeps_partial = split == "valid" and not config.drop_last_partial_validation_sequence
            required = config.add_extra_token_to_sequence + (1 if keeps_partial else config.sequence_length)
        for prefix in prefixes:
            if part is None or "://" in prefix:
                continue
            lengths = sequence_lengths(prefix)
            start, end = (round(edge * lengths.size) for edge in part)
            tokens = int(lengths[start:end].sum(dtype=np.int64))
            if tokens < required:
                raise NotEnoughSamplesError(
                    f"{prefix}: the {split} split has {tokens or 'no'} tokens (documents {start} to {end} of "
                    f"{lengths.size}, split={config.split!r}), and at least {required} are required; no sample can be "
                    f"drawn. Provide more documents, change the split, or request no {split} samples."
                )


def _with_progress(kind: Any, progress: Progress | None, config: Any, sizes: Sequence[int | None]) -> Any:
    """Return a subclass of a Megatron dataset class that reports the construction of each instance.

    The subclass has the name of its base, because Megatron includes the class name in the names of cached indices.
    """
    if progress is None:
        return kind
    is_built = [size is None or size > 0 for size in sizes]
    if config.blend_per_split is not None:
        parts = zip(is_built, config.blend_per_split, strict=True)
        total = sum(len(blend[0]) for is_wanted, blend in parts if is_wanted and blend)
    else:
        total = sum(is_built) * len(config.blend[0] if config.blend else [""])
    done, report = count(1), progress

    class ReportingDataset(kind):  # type: ignore[misc]
        def __init__(self, *args: Any, **values: Any) -> None:
            super().__init__(*args, **values)
            report(_PROGRESS_STAGE, min(next(done), total), total)

    ReportingDataset.__name__, ReportingDataset.__qualname__ = kind.__name__, kind.__qualname__
    return ReportingDataset


def _require_samples(dataset: Any, *, split: str, num_samples: int) -> None:
    if dataset is not None and not isinstance(dataset, list) and len(dataset) < num_samples:
        raise NotEnoughSamplesError(
            f"dataset.blend: the {split} split has {len(dataset)} of the {num_samples} samples that the run needs; a "
            "blend without weights is read only once. Set weights, provide more data, or run fewer steps."
        )


@contextmanager
def _suppress_notices() -> Iterator[None]:
    """Suppress two messages of Megatron that are expected here.

    One states that generated data is not cached. The other states that without a process group this process is
    treated as rank 0, which is correct.
    """

    def keep(record: logging.LogRecord) -> bool:
        return "because path_to_cache is None" not in record.getMessage()

    logger = logging.getLogger("megatron.core.datasets.gpt_dataset")
    logger.addFilter(keep)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Could not determine rank")
            yield
    finally:
        logger.removeFilter(keep)
