"""Megatron Core's GPT dataset, whose files and tokens are checked when they are read."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from megatron.core.datasets import gpt_dataset
from megatron.core.datasets.indexed_dataset import (
    IndexedDataset,
    _BinReader,
    _FileBinReader,
    _IndexReader,
    get_idx_path,
)
from megatron.core.datasets.utils import Split

from mb_data.errors import IndexedFormatError
from mb_data.loading.document_parts import document_parts
from mb_data.loading.mapped_files import cut_short, require_complete
from mb_data.text.indexed import CODES, index_summary
from mb_data.text.shards.manifest import ShardFile, is_sharded, read_manifest
from mb_data.text.shards.s3 import SCHEME, S3Tokens, find_s3_shards
from mb_data.text.shards.tokens import ShardedTokens


class ShardedBinReader(_BinReader):  # type: ignore[misc] # Megatron Core has no types
    """Reader of the tokens of shards, by their offset in all of them."""

    def __init__(self, tokens: ShardedTokens) -> None:
        self._tokens = tokens

    def read(self, dtype: Any, count: int, offset: int) -> Any:
        """Return `count` tokens from a byte offset."""
        start = offset // self._tokens.itemsize
        return np.asarray(self._tokens.read(start, start + count), dtype)


class ShardedDataset(IndexedDataset):  # type: ignore[misc] # Megatron Core has no types
    """Megatron's dataset, whose tokens are in shards and whose index is one file.

    Args:
        path_prefix: Path of the index without suffix.
    """

    def initialize(self, path_prefix: str, *_: Any, **__: Any) -> None:
        """Open the index; called by the constructor and when a worker process receives the dataset."""
        self._open(path_prefix, get_idx_path(path_prefix))
        self.bin_reader = ShardedBinReader(ShardedTokens(read_manifest(path_prefix), self.index.dtype))

    def _open(self, path_prefix: str, index_path: str) -> None:
        self.path_prefix = path_prefix
        self.multimodal, self.mmap, self.object_storage_config = False, True, None
        self.fast_cache_load, self.sequences_per_dataset, self.dtype_code = False, None, None
        self.index = _IndexReader(index_path, False)


class S3ShardedDataset(ShardedDataset):
    """The same for shards in S3.

    Args:
        path_prefix: URL without suffix.
        index_path: Copy of the index.
        files: Files of the shards.
    """

    def __init__(self, path_prefix: str, index_path: str, files: Sequence[ShardFile]) -> None:
        self._state = path_prefix, index_path, files
        self._open(path_prefix, index_path)
        self.bin_reader = ShardedBinReader(S3Tokens(files, self.index.dtype))

    def __getstate__(self) -> Any:
        """Return what a worker process opens the dataset with; the storage is read for nothing but tokens."""
        return self._state

    def __setstate__(self, state: Any) -> None:
        self.__init__(*state)  # type: ignore[misc]


class GPTDataset(gpt_dataset.GPTDataset):  # type: ignore[misc] # Megatron Core has no types
    """Megatron's dataset, which rejects tokens beyond the vocabulary of its tokenizer, and files that were cut short.

    It has the name of its base, because Megatron includes the class name in the names of cached indices.
    """

    def __init__(self, *args: Any, **values: Any) -> None:
        super().__init__(*args, **values)
        if self.index_split is Split.valid and not self.config.drop_last_partial_validation_sequence:
            # Megatron keeps the loss mask of the first sample that a process reads, and masks the padding of a
            # shorter sequence in it: all others would then lose the same tokens.
            self.masks_and_position_ids_are_cacheable = False
        self._unmapped_file: tuple[Path, int] | None = None
        if isinstance(self.dataset.bin_reader, _FileBinReader):  # it ignores how many bytes it got
            file = Path(self.dataset.bin_reader._bin_path)
            self._unmapped_file = file, file.stat().st_size

    @staticmethod
    def build_low_level_dataset(dataset_path: str, config: Any) -> Any:
        """Open the tokens of a prefix: a pair, or shards.

        Raises:
            IndexedFormatError: The index has other counts than `sequences_per_dataset`, or tokens of another type than
                Megatron expects with it.
        """
        if is_sharded(dataset_path):
            return ShardedDataset(dataset_path)
        if dataset_path.startswith(SCHEME):
            found = find_s3_shards(dataset_path, index_cache=config.object_storage_cache_path)
            if found is not None:
                index, files = found
                return S3ShardedDataset(dataset_path, str(index), files)
        if config.sequences_per_dataset and "://" not in dataset_path:
            _require_recorded_header(dataset_path, config)
        return gpt_dataset.GPTDataset.build_low_level_dataset(dataset_path, config)

    def _query_document_sample_shuffle_indices(self, idx: int) -> Any:
        """Return the tokens of a sample, and what Megatron returns with them.

        Raises:
            IndexedFormatError: A token is not in the vocabulary, or a file was cut short.
        """
        for array in self._mapped_arrays():
            require_complete(array._mmap, str(array.filename))  # type: ignore[attr-defined]
        if self._unmapped_file is not None:
            file, expected = self._unmapped_file
            if (size := file.stat().st_size) < expected:
                raise cut_short(file, size=size, expected=expected)
        result = super()._query_document_sample_shuffle_indices(idx)
        tokens, limit = result[0], self.config.tokenizer.vocab_size
        if limit is not None and tokens.size and tokens.max() >= limit:
            self._reject(idx, tokens, limit)
        return result

    def _mapped_arrays(self) -> Iterator[np.memmap[Any, Any]]:
        """Yield the files that are mapped: tokens, their index and the sample indices."""
        of_pair = (
            getattr(self.dataset.bin_reader, "_bin_buffer_mmap", None),
            self.dataset.index.bin_buffer_mmap,
        )
        for array in (*of_pair, self.document_index, self.sample_index, self.shuffle_index):
            if isinstance(array, np.memmap):
                yield array

    def _reject(self, idx: int, tokens: Any, limit: int) -> None:
        position = int((tokens >= limit).argmax())
        start = 0
        for part in document_parts(self, idx):
            if position < start + part.tokens:
                where = (
                    f"{part.source}.bin: token {part.offset + position - start} of document {part.document}"
                )
                raise IndexedFormatError(
                    f"{where} is {int(tokens[position])}, but the vocabulary has {limit} entries. The file was written "
                    "with another tokenizer, or was overwritten. Use its tokenizer, or build the file again."
                )
            start += part.tokens


def _require_recorded_header(prefix: str, config: Any) -> None:
    """Compare an index with `sequences_per_dataset`, with which Megatron reads no header.

    It takes the counts from there and derives the token type from the vocabulary. If these are wrong, it reads other
    numbers as tokens.

    Raises:
        IndexedFormatError: They differ.
    """
    recorded = config.sequences_per_dataset.get(prefix)
    expected_type = {code: name for name, code in CODES.items()}[config.token_dtype_code]
    index = index_summary(Path(f"{prefix}.idx"))
    found = [index.sequences, index.documents + 1]
    if recorded is None or list(recorded) != found or index.dtype != expected_type:
        raise IndexedFormatError(
            f"dataset.sequences_per_dataset: {recorded} sequences and document boundaries of {expected_type} tokens "
            f"(the type for {config.tokenizer.vocab_size} entries) for {prefix}, but {prefix}.idx has {found} of "
            f"{index.dtype}; wrong tokens would be read. Correct the counts, or leave them unset."
        )
