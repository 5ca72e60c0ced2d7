"""Random access to the documents of a `.bin`/`.idx` pair or of shards, and a check that reads all of them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mb_data.errors import DocumentNumberError, IndexedFormatError
from mb_data.progress import Progress
from mb_data.text.indexed import HEADER, pair_paths, verify_prefix
from mb_data.text.shards.manifest import file_digest, is_sharded, read_manifest
from mb_data.text.shards.tokens import ShardedTokens

BLOCK = 1 << 22
"""Number of tokens that are read at a time."""


class IndexedReader:
    """Memory-mapped reader for the documents of a pair, or of shards.

    Args:
        prefix: Path without `.bin` and `.idx`.

    Raises:
        DataPathError: The pair, or one of its files, does not exist.
        IndexedFormatError: A header is invalid, or the size of a file does not match the index.
    """

    def __init__(self, prefix: str | Path) -> None:
        self.prefix, self.summary = str(prefix), verify_prefix(prefix)
        number, boundaries = self.summary.sequences, self.summary.documents + 1
        offsets, ends = HEADER.size + 4 * number, HEADER.size + 12 * number
        self.lengths: NDArray[Any] = self._memmap(np.int32, HEADER.size, number)
        """Number of tokens of each sequence."""
        self.offsets: NDArray[Any] = self._memmap(np.int64, offsets, number)
        """Byte offset of each sequence."""
        self.boundaries: NDArray[Any] = self._memmap(np.int64, ends, boundaries)
        """Number of sequences before each document; the last entry is the total."""
        self.tokens: NDArray[Any] | ShardedTokens = (
            ShardedTokens(read_manifest(prefix), self.summary.dtype)
            if is_sharded(prefix)
            else self._memmap(self.summary.dtype, 0, self.summary.tokens, of="bin")
        )
        self._index_is_valid = False

    def __len__(self) -> int:
        """Return the number of documents."""
        return self.summary.documents

    def document(self, number: int) -> NDArray[Any]:
        """Return the token ids of one document, over all its sequences.

        Raises:
            DocumentNumberError: The document does not exist.
            IndexedFormatError: The index is inconsistent.
        """
        if not 0 <= number < len(self):
            raise DocumentNumberError(
                f"{self.prefix}: has no document {number}; it has {len(self)}, counted from 0. Use another number."
            )
        self._validate_index()
        first, last = (int(position) for position in self.boundaries[number : number + 2])
        if first == last:
            return np.empty(0, self.summary.dtype)
        start = int(self.offsets[first]) // self.tokens.itemsize
        return self.tokens[start : start + int(self.lengths[first:last].sum(dtype=np.int64))]

    def document_lengths(self) -> NDArray[np.int64]:
        """Return the number of tokens of each document.

        Raises:
            IndexedFormatError: The index is inconsistent.
        """
        self._validate_index()
        before = np.concatenate([np.zeros(1, np.int64), np.cumsum(self.lengths, dtype=np.int64)])
        lengths: NDArray[np.int64] = np.diff(before[self.boundaries])
        return lengths

    def _validate_index(self) -> None:
        """Validate the complete index on first use, so that documents are never read from wrong offsets."""
        if self._index_is_valid:
            return
        for problem in _index_problems(self):
            raise IndexedFormatError(problem)
        self._index_is_valid = True

    def _memmap(self, dtype: Any, offset: int, number: int, *, of: str = "idx") -> NDArray[Any]:
        tokens, index = pair_paths(self.prefix)
        path = index if of == "idx" else tokens
        if not number:
            return np.empty(0, dtype)
        return np.memmap(path, dtype=dtype, mode="r", offset=offset, shape=(number,))


def examine_prefix(
    prefix: str | Path,
    *,
    vocab_size: int | None = None,
    eod: int | None = None,
    progress: Progress | None = None,
) -> list[str]:
    """Read a complete pair and return the problems found; the list is empty for a valid pair.

    The index is valid if every sequence starts at the end of the previous one and documents are consecutive. With
    `vocab_size`, every token id must be below it. With `eod`, every document must end with it.

    Args:
        prefix: Path without suffix.
        vocab_size: Number of entries of the tokenizer; None: tokens are not read.
        eod: End-of-document id; None: the ends of documents are not checked.
        progress: Called with the stage, the number of tokens read, and their total.

    Raises:
        DataPathError: The pair, or one of its files, does not exist.
    """
    try:
        reader = IndexedReader(prefix)
    except IndexedFormatError as error:
        return [str(error)]
    problems = [*_index_problems(reader)]
    if problems:
        return problems
    if vocab_size is not None:
        problems += _token_problems(reader, vocab_size, progress)
    if eod is not None:
        problems += _end_problems(reader, eod)
    return problems or [*_shard_problems(prefix)]


def _index_problems(reader: IndexedReader) -> Iterator[str]:
    """Yield what is wrong with lengths, offsets and document boundaries. Reads the complete index."""
    path = pair_paths(reader.prefix)[1]
    negative = np.flatnonzero(reader.lengths < 0)
    if negative.size:
        yield f"{path}: sequence {negative[0]} has {reader.lengths[negative[0]]} tokens. Build the pair again."
        return
    ends = np.cumsum(reader.lengths, dtype=np.int64) * reader.tokens.itemsize
    starts = np.concatenate([np.zeros(1, np.int64), ends])[: len(ends)]
    wrong = np.flatnonzero(reader.offsets != starts)
    if wrong.size:
        first = wrong[0]
        yield (
            f"{path}: {wrong.size} sequences do not start at the end of the previous one; sequence {first} starts at "
            f"byte {reader.offsets[first]} instead of {starts[first]}. Build the pair again."
        )
    boundaries = np.asarray(reader.boundaries)
    if boundaries[0] != 0 or (np.diff(boundaries) < 0).any() or boundaries[-1] != len(reader.lengths):
        yield (
            f"{path}: documents are not consecutive from sequence 0 to {len(reader.lengths)}. Build the pair again."
        )


def _shard_problems(prefix: str | Path) -> Iterator[str]:
    """Compare the hash of each shard with the manifest."""
    for file in read_manifest(prefix) if is_sharded(prefix) else ():
        if file_digest(file.path) != file.digest:
            yield (
                f"{file.path}: has another hash than when it was built; it was damaged or replaced. Remove it, and "
                "build the data again; complete shards are kept."
            )


def _token_problems(reader: IndexedReader, vocab_size: int, progress: Progress | None) -> Iterator[str]:
    """Yield the first token id that the tokenizer does not have. Reads the complete `.bin` file."""
    total = reader.tokens.size
    for start in range(0, total, BLOCK):
        block = np.asarray(reader.tokens[start : start + BLOCK])
        wrong = np.flatnonzero((block < 0) | (block >= vocab_size))
        if wrong.size:
            position = start + int(wrong[0])
            yield (
                f"{pair_paths(reader.prefix)[0]}: token {position} is {block[wrong[0]]}, but the tokenizer has "
                f"{vocab_size} entries; another tokenizer produced the tokens. Use that tokenizer, or build the pair "
                "again."
            )
            return
        if progress is not None:
            progress("read", min(start + BLOCK, total), total)


def _end_problems(reader: IndexedReader, eod: int) -> Iterator[str]:
    ends = np.cumsum(reader.document_lengths())
    last = np.asarray(reader.tokens[ends[np.diff(ends, prepend=0) > 0] - 1])
    without = int((last != eod).sum())
    if without:
        yield (
            f"{pair_paths(reader.prefix)[0]}: {without} of {len(reader)} documents do not end with the "
            f"end-of-document id {eod}; the next document would continue them. Build the pair again with this "
            "tokenizer."
        )
