"""Megatron Core's indexed dataset over the shards of a data set."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from megatron.core.datasets.indexed_dataset import IndexedDataset, _BinReader, _IndexReader, get_idx_path

from mb_data.text.shards.manifest import ShardFile, read_manifest
from mb_data.text.shards.s3 import S3Tokens
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
