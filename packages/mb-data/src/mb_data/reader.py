"""Documents of a `.bin`/`.idx` pair by number, and a check that reads all of it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mb_data.errors import DocumentNumberError, IndexedFormatError
from mb_data.indexed import HEADER, pair_paths, verify_prefix

BLOCK = 1 << 22
"""Tokens or entries that are read at a time."""


class IndexedReader:
    """Reads the documents of a pair, which stays in its files.

    Args:
        prefix: Path without `.bin` and `.idx`.

    Raises:
        DataPathError: The pair, or one file of it, does not exist.
        IndexedFormatError: A header is wrong, or a file is shorter or longer than the index says.
    """

    def __init__(self, prefix: str | Path) -> None:
        self.prefix, self.summary = str(prefix), verify_prefix(prefix)
        number, boundaries = self.summary.sequences, self.summary.documents + 1
        offsets, ends = HEADER.size + 4 * number, HEADER.size + 12 * number
        self.lengths: NDArray[Any] = self._memmap(np.int32, HEADER.size, number)
        """Tokens of each sequence."""
        self.offsets: NDArray[Any] = self._memmap(np.int64, offsets, number)
        """Bytes before each sequence."""
        self.boundaries: NDArray[Any] = self._memmap(np.int64, ends, boundaries)
        """Sequences before each document, and at last all of them."""
        self.tokens: NDArray[Any] = self._memmap(self.summary.dtype, 0, self.summary.tokens, of="bin")
        self._index_is_valid = False

    def __len__(self) -> int:
        """Return the number of documents."""
        return self.summary.documents

    def document(self, number: int) -> NDArray[Any]:
        """Return the token ids of one document, all its sequences.

        Raises:
            DocumentNumberError: There is no such document.
            IndexedFormatError: The index does not say where documents and sequences are.
        """
        if not 0 <= number < len(self):
            raise DocumentNumberError(
                f"{self.prefix}: has no document {number}; it has {len(self)}, counted from 0. Give another number."
            )
        self._validate_index()
        first, last = (int(position) for position in self.boundaries[number : number + 2])
        if first == last:
            return np.empty(0, self.summary.dtype)
        start = int(self.offsets[first]) // self.tokens.itemsize
        return self.tokens[start : start + int(self.lengths[first:last].sum(dtype=np.int64))]

    def document_lengths(self) -> NDArray[np.int64]:
        """Return the tokens of each document.

        Raises:
            IndexedFormatError: As for `document`.
        """
        self._validate_index()
        before = np.concatenate([np.zeros(1, np.int64), np.cumsum(self.lengths, dtype=np.int64)])
        lengths: NDArray[np.int64] = np.diff(before[self.boundaries])
        return lengths

    def _validate_index(self) -> None:
        """Read all of the index, once."""
        if self._index_is_valid:
            return
        for problem in _index_problems(self):
            raise IndexedFormatError(problem)
        self._index_is_valid = True

    def _memmap(self, dtype: Any, offset: int, number: int, *, of: str = "idx") -> NDArray[Any]:
        path = pair_paths(self.prefix)[of == "idx"]
        if not number:
            return np.empty(0, dtype)
        return np.memmap(path, dtype=dtype, mode="r", offset=offset, shape=(number,))


def examine_prefix(
    prefix: str | Path,
    *,
    vocab_size: int | None = None,
    eod: int | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> list[str]:
    """Read all of a pair and say what is wrong with it; an empty list if nothing is.

    Looked at are the index (every sequence begins where the one before it ends, documents follow each other) and, with
    a `vocab_size`, whether every token is below it.

    Args:
        prefix: Path without suffix.
        vocab_size: Entries of the tokenizer; None: tokens are not read.
        eod: Id that every document must end with; None: that is not looked at.
        progress: Called with the stage, tokens read, and their number.

    Raises:
        DataPathError: The pair, or one file of it, does not exist.
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
    return problems


def _index_problems(reader: IndexedReader) -> Iterator[str]:
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
            f"{path}: {wrong.size} sequences do not begin where the one before them ends; number {first} at byte "
            f"{reader.offsets[first]} instead of {starts[first]}. Build the pair again."
        )
    boundaries = np.asarray(reader.boundaries)
    if boundaries[0] != 0 or (np.diff(boundaries) < 0).any() or boundaries[-1] != len(reader.lengths):
        yield (
            f"{path}: documents do not follow each other from sequence 0 to {len(reader.lengths)}. Build the pair "
            "again."
        )


def _token_problems(
    reader: IndexedReader, vocab_size: int, progress: Callable[[str, int, int], None] | None
) -> Iterator[str]:
    total = reader.tokens.size
    for start in range(0, total, BLOCK):
        block = np.asarray(reader.tokens[start : start + BLOCK])
        wrong = np.flatnonzero((block < 0) | (block >= vocab_size))
        if wrong.size:
            position = start + int(wrong[0])
            yield (
                f"{pair_paths(reader.prefix)[0]}: token {position} is {block[wrong[0]]}, but the tokenizer has "
                f"{vocab_size} entries; it is not the one that made the tokens. Name that one, or build the pair again."
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
            f"{pair_paths(reader.prefix)[0]}: {without} of {len(reader)} documents do not end with {eod}, the end of a "
            "document; the next text would be taken for a part of theirs. Build the pair again with this tokenizer."
        )
