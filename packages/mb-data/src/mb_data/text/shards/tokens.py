"""Tokens of shards as one array, mapped into memory shard by shard."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mb_data.loading.mapped_files import require_complete
from mb_data.text.shards.manifest import ShardFile


class ShardedTokens:
    """Tokens of all shards of a data set, in their order. A shard is opened at its first use and stays open.

    Args:
        files: Files of the shards; see `read_manifest`.
        dtype: Type of a token id.
    """

    def __init__(self, files: Sequence[ShardFile], dtype: Any) -> None:
        self.dtype = np.dtype(dtype)
        self.files = files
        sizes = [file.bytes // self.dtype.itemsize for file in files]
        self._starts = np.cumsum([0, *sizes])
        """First token of each shard, and the number of all."""
        self._opened: list[np.memmap[Any, Any] | None] = [None] * len(files)

    @property
    def size(self) -> int:
        """Number of tokens."""
        return int(self._starts[-1])

    @property
    def itemsize(self) -> int:
        """Bytes of a token."""
        return int(self.dtype.itemsize)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return the tokens from `start` to `stop`; a view if one shard has them, as it has those of a document.

        Raises:
            IndexedFormatError: A shard was cut short since it was opened.
        """
        if start >= stop:
            return np.empty(0, self.dtype)
        first = int(np.searchsorted(self._starts, start, side="right")) - 1
        pieces = []
        while start < stop:
            begin, end = int(self._starts[first]), min(stop, int(self._starts[first + 1]))
            if begin < end:
                pieces.append(self.piece(first, start - begin, end - begin))
            start, first = max(start, end), first + 1
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def piece(self, shard: int, begin: int, end: int) -> NDArray[Any]:
        """Return tokens of a shard, by their positions in it.

        Raises:
            IndexedFormatError: The shard was cut short since it was opened.
        """
        return self._shard(shard)[begin:end]

    def __getitem__(self, key: Any) -> NDArray[Any]:
        if isinstance(key, slice):
            start, stop, _ = key.indices(self.size)
            return self.read(start, stop)
        positions = np.asarray(key)
        tokens = np.empty(positions.shape, self.dtype)
        owners = np.searchsorted(self._starts, positions, side="right") - 1
        for shard in np.unique(owners):
            mine = owners == shard
            tokens[mine] = self._shard(int(shard))[positions[mine] - self._starts[shard]]
        return tokens

    def _shard(self, number: int) -> NDArray[Any]:
        opened = self._opened[number]
        if opened is None:
            opened = self._opened[number] = np.memmap(self.files[number].path, dtype=self.dtype, mode="r")
        require_complete(opened._mmap, str(opened.filename))  # type: ignore[attr-defined]
        return opened
