"""Writer and integrity check for Megatron's `.bin`/`.idx` pairs.

The `.bin` file contains only token ids. The `.idx` file, little-endian, contains: magic (9 bytes), version (uint64),
code of the token type (uint8), number of sequences and of document boundaries (uint64 each), then the length (int32) of
each sequence, the byte offset (int64) of each sequence, and the document boundaries (int64), which start with 0. The
writer stores each document as one sequence. The format is that of `megatron.core.datasets.indexed_dataset`.
"""

import difflib
import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import DTypeLike, NDArray

from mb_data.errors import DataPathError, IndexedFormatError
from mb_data.text.shards.manifest import is_sharded, read_manifest

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
HEADER = struct.Struct("<9sQBQQ")
"""Magic, version, code of the token type, number of sequences and of document boundaries."""
CODES = {
    "uint8": 1,
    "int8": 2,
    "int16": 3,
    "int32": 4,
    "int64": 5,
    "float64": 6,
    "float32": 7,
    "uint16": 8,
}
"""Token type to its code in the header."""
_BLOCK = 1 << 16
"""Documents whose part of an index is computed at a time."""
_BYTES_PER_LENGTH, _BYTES_PER_OFFSET, _BYTES_PER_BOUNDARY = 4, 8, 8
_BYTES_PER_SEQUENCE = _BYTES_PER_LENGTH + _BYTES_PER_OFFSET


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexedSummary:
    """Sizes and token type of a `.bin`/`.idx` pair."""

    documents: int
    sequences: int
    tokens: int
    dtype: str
    """Type of a token id, such as "uint16"."""
    bytes: int
    """Total size of both files."""


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """Return the smaller of Megatron's two types that holds every id: uint16 up to 65,536 entries, otherwise int32.

    Megatron's own preprocessing changes to int32 at 65,500 entries. Readers take the type from the header.
    """
    return np.dtype(np.uint16 if vocab_size <= np.iinfo(np.uint16).max + 1 else np.int32)


class IndexedWriter:
    """Context manager that writes the documents of a `.bin`/`.idx` pair.

    The files are written under temporary names. When the block ends without an exception, they replace a pair of the
    same prefix: its `.idx` is removed first and the new one is put in place last, so that an interruption leaves a pair
    without an index, which readers reject. After an exception in the block no new files remain. Memory holds four bytes
    per document.

    Args:
        prefix: Path without `.bin` and `.idx`. Its folder must exist.
        dtype: Type of a token id.

    Raises:
        ValueError: The format does not support the type.
    """

    def __init__(self, prefix: str | Path, *, dtype: DTypeLike) -> None:
        self.dtype = np.dtype(dtype)
        if self.dtype.name not in CODES:
            raise ValueError(
                f"{prefix}: the format has no token type {self.dtype.name}; it supports {', '.join(CODES)}. Use one of "
                "them."
            )
        self._bin, self._idx = pair_paths(prefix)
        self._lengths = array("i")
        self._tokens = 0

    def __enter__(self) -> "IndexedWriter":
        self._stream = _partial_path(self._bin).open("wb")
        return self

    def add_document(self, tokens: Sequence[int] | NDArray[Any]) -> None:
        """Append one document, given as its token ids, [tokens].

        Raises:
            ValueError: A token id is not an integer, or does not fit the token type.
        """
        self.add_documents(np.asarray(tokens), lengths=[len(tokens)])

    def add_documents(self, tokens: NDArray[Any], *, lengths: Sequence[int]) -> None:
        """Append documents.

        Args:
            tokens: Token ids of all documents, one after the other, integers [sum of the lengths].
            lengths: Tokens of each document.

        Raises:
            ValueError: A token id is not an integer, or does not fit the token type; or the lengths do not sum to the
                number of tokens.
        """
        if sum(lengths) != tokens.size:
            raise ValueError(
                f"{self._bin}: lengths sum to {sum(lengths)}, but there are {tokens.size} tokens"
            )
        if tokens.size and self.dtype.kind in "iu":
            if tokens.dtype.kind not in "iu":
                raise ValueError(
                    f"{self._bin}: token ids are {tokens.dtype.name}, and {self.dtype.name} would change them without "
                    "a notice. Pass integers."
                )
            bounds = np.iinfo(self.dtype)
            if tokens.min() < bounds.min or tokens.max() > bounds.max:
                raise ValueError(
                    f"{self._bin}: token ids from {tokens.min()} to {tokens.max()} do not fit {self.dtype.name}; "
                    "they would overflow. Use a wider dtype."
                )
        self._stream.write(tokens.astype(self.dtype, copy=False).tobytes())
        self._lengths.extend(lengths)
        self._tokens += tokens.size

    @property
    def summary(self) -> IndexedSummary:
        """Sizes of what has been written so far."""
        documents = len(self._lengths)
        index_bytes = HEADER.size + documents * _BYTES_PER_SEQUENCE + (documents + 1) * _BYTES_PER_BOUNDARY
        return IndexedSummary(
            documents=documents,
            sequences=documents,
            tokens=self._tokens,
            dtype=self.dtype.name,
            bytes=index_bytes + self._tokens * self.dtype.itemsize,
        )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.close()
        try:
            if kind is None:
                write_index(_partial_path(self._idx), np.asarray(self._lengths, np.int32), dtype=self.dtype)
                self._idx.unlink(missing_ok=True)  # it would describe other tokens
                _partial_path(self._bin).replace(self._bin)
                _partial_path(self._idx).replace(self._idx)
        finally:
            for path in (self._bin, self._idx):
                _partial_path(path).unlink(missing_ok=True)


def write_index(path: Path, lengths: NDArray[np.int32], *, dtype: np.dtype[Any]) -> None:
    """Write the `.idx` file of documents with these lengths, each of one sequence, one after the other.

    Args:
        path: The file.
        lengths: Tokens of each document, int32 [documents].
        dtype: Type of a token id.
    """
    number = lengths.size
    with path.open("wb") as stream:
        stream.write(HEADER.pack(MAGIC, VERSION, CODES[dtype.name], number, number + 1))
        stream.write(lengths)
        end = 0
        # in blocks: the two columns have four times the size of the lengths
        for first in range(0, number, _BLOCK):
            sizes = lengths[first : first + _BLOCK].astype(np.int64) * dtype.itemsize
            ends = end + np.cumsum(sizes)
            stream.write(ends - sizes)
            end = int(ends[-1])
        for first in range(0, number + 1, _BLOCK):
            stream.write(np.arange(first, min(first + _BLOCK, number + 1), dtype=np.int64))


def pair_paths(prefix: str | Path) -> tuple[Path, Path]:
    """Return the paths of the `.bin` and the `.idx` file of a prefix."""
    return Path(f"{prefix}.bin"), Path(f"{prefix}.idx")


def verify_prefix(prefix: str | Path) -> IndexedSummary:
    """Check that a `.bin`/`.idx` pair exists and is complete, from its header, file sizes and last entries.

    Reads a few bytes, independently of the size of the pair.

    Raises:
        DataPathError: The pair, or one of its files, does not exist.
        IndexedFormatError: A header is invalid, or the size of a file does not match the index.
    """
    bin_path, idx_path = pair_paths(prefix)
    _require_pair(bin_path, idx_path)
    summary = index_summary(idx_path)
    expected = summary.tokens * np.dtype(summary.dtype).itemsize
    found = _bytes_of_shards(prefix) if is_sharded(prefix) else bin_path.stat().st_size
    if found != expected:
        raise IndexedFormatError(
            f"{bin_path}: {found} bytes found, {expected} expected ({summary.tokens} tokens of "
            f"{summary.dtype} according to {idx_path.name}); a file is truncated, or the files do not belong together. "
            "Build them again."
        )
    return summary


def index_summary(idx_path: Path) -> IndexedSummary:
    """Return the sizes of an index and of the tokens that it describes. Does not read the `.bin` file.

    Raises:
        DataPathError: The index does not exist.
        IndexedFormatError: The header is invalid, the size of the file does not match it, or the last entries
            contradict each other.
    """
    with _open_index(idx_path) as stream:
        name, sequences, boundaries = _read_header(stream, idx_path)
    itemsize = np.dtype(name).itemsize
    expected = HEADER.size + sequences * _BYTES_PER_SEQUENCE + boundaries * _BYTES_PER_BOUNDARY
    index_bytes = idx_path.stat().st_size
    if index_bytes not in (expected, expected + sequences):  # multimodal data has one more byte per sequence
        raise IndexedFormatError(
            f"{idx_path}: {index_bytes} bytes, but {sequences} sequences and {boundaries} document boundaries need "
            f"{expected}; the file is truncated or is not an index. Build it again."
        )
    tokens = _count_tokens(idx_path, sequences=sequences, boundaries=boundaries, itemsize=itemsize)
    return IndexedSummary(
        documents=boundaries - 1,
        sequences=sequences,
        tokens=tokens,
        dtype=name,
        bytes=index_bytes + tokens * itemsize,
    )


def sequence_lengths(prefix: str | Path) -> NDArray[np.int32]:
    """Return the memory-mapped lengths of the sequences of a pair, in tokens, int32 [sequences].

    Raises:
        DataPathError: The index does not exist.
        IndexedFormatError: The header of the index is invalid.
    """
    idx_path = pair_paths(prefix)[1]
    with _open_index(idx_path) as stream:
        _, sequences, _ = _read_header(stream, idx_path)
    if not sequences:
        return np.empty(0, np.int32)
    return np.memmap(idx_path, dtype=np.int32, mode="r", offset=HEADER.size, shape=(sequences,))


def read_lengths(idx_path: Path) -> NDArray[np.int32]:
    """Return the lengths of the sequences of an index, in tokens, int32 [sequences], read into memory.

    In contrast to `sequence_lengths`, the index may be in object storage.

    Raises:
        DataPathError: The index does not exist.
        IndexedFormatError: The header of the index is invalid.
    """
    with _open_index(idx_path) as stream:
        _, sequences, _ = _read_header(stream, idx_path)
        return np.frombuffer(stream.read(_BYTES_PER_LENGTH * sequences), np.int32)


def _partial_path(path: Path) -> Path:
    """Return the temporary name of a file, in the same folder, so that a rename replaces the file at once."""
    return path.with_name(f".{path.name}.partial")


def _bytes_of_shards(prefix: str | Path) -> int:
    """Return the size of the tokens of all shards.

    Raises:
        DataPathError: A shard does not exist.
        IndexedFormatError: A shard has another size than in the manifest.
    """
    total = 0
    for file in read_manifest(prefix):
        try:
            size = file.path.stat().st_size
        except FileNotFoundError as error:
            raise DataPathError(
                f"{file.path}: no such file, but the manifest of {prefix} names it. Copy it, or build the data again; "
                "complete shards are kept."
            ) from error
        if size != file.bytes:
            raise IndexedFormatError(
                f"{file.path}: {size} bytes found, {file.bytes} expected according to the manifest; it is truncated or "
                "was replaced. Build the data again; complete shards are kept."
            )
        total += size
    return total


def _require_pair(bin_path: Path, idx_path: Path) -> None:
    """Check that both files exist; of a pair in shards only the index does.

    Raises:
        DataPathError: A file does not exist.
    """
    existing = [path for path in (bin_path, idx_path) if path.is_file()]
    prefix = str(bin_path)[: -len(".bin")]
    if len(existing) == 2 or (existing == [idx_path] and is_sharded(prefix)):
        return
    if existing:
        missing = idx_path if existing == [bin_path] else bin_path
        raise DataPathError(
            f"{prefix}: {existing[0].name} exists, but {missing.name} does not; a dataset consists of both files. "
            "Copy the missing file, or build the pair again."
        )
    raise DataPathError(f"{prefix}: no such .bin/.idx pair; {_suggest_path(prefix)}")


def _suggest_path(prefix: str) -> str:
    """Return a fix for a prefix that does not exist, with the most similar existing names."""
    path = Path(prefix)
    if path.name.endswith(".shards") or path.parent.name.endswith(".shards"):
        folder = path if path.name.endswith(".shards") else path.parent
        return f"a data path of shards is the prefix of their folder. Use {folder.with_suffix('')}."
    if path.suffix in (".bin", ".idx") and path.is_file():
        return f"a data path is a prefix without suffix. Use {path.with_suffix('')}."
    if path.is_dir():
        pairs = sorted(str(entry.with_suffix("")) for entry in path.glob("*.idx"))
        use = " or ".join(pairs[:3]) or "the prefix of a pair"
        return f"this is a folder, and a data path is a prefix. Use {use}."
    folder = path.parent
    while not folder.is_dir():
        folder = folder.parent
    if folder != path.parent:
        return (
            f"the folder {path.parent} does not exist; the nearest existing parent is {folder.absolute()}. Correct the "
            "path."
        )
    names = sorted(entry.stem for entry in folder.glob("*.idx"))
    close = difflib.get_close_matches(path.name, names, n=3, cutoff=0) if names else []
    return f"{folder.absolute()} contains {', '.join(close) or 'no .idx file'}. Correct the path."


def _open_index(idx_path: Path) -> BinaryIO:
    try:
        return idx_path.open("rb")
    except FileNotFoundError as error:
        prefix = str(idx_path)[: -len(".idx")]
        raise DataPathError(f"{idx_path}: no such file; {_suggest_path(prefix)}") from error


def _read_header(stream: BinaryIO, idx_path: Path) -> tuple[str, int, int]:
    """Return the token type, the number of sequences and of document boundaries.

    Raises:
        IndexedFormatError: The file is no index, is shorter than a header, or has another version or type.
    """
    header = stream.read(HEADER.size)
    if not header.startswith(MAGIC[: len(header)]):
        raise IndexedFormatError(
            f"{idx_path}: begins with {header[: len(MAGIC)]!r}, but an index begins with {MAGIC!r}; this is another "
            "kind of file. Pass the prefix of a .bin/.idx pair."
        )
    if len(header) < HEADER.size:
        raise IndexedFormatError(
            f"{idx_path}: {len(header)} bytes, but the header of an index has {HEADER.size}; the file is truncated. "
            "Build the pair again."
        )
    _, version, code, sequences, boundaries = HEADER.unpack(header)
    names = {number: name for name, number in CODES.items()}
    if version != VERSION or code not in names or boundaries < 1:
        raise IndexedFormatError(
            f"{idx_path}: version {version}, token type code {code}, {boundaries} document boundaries; supported are "
            f"version {VERSION}, codes {sorted(names)} and at least 1 boundary. Build the pair again."
        )
    return names[code], sequences, boundaries


def _count_tokens(idx_path: Path, *, sequences: int, boundaries: int, itemsize: int) -> int:
    """Return the number of tokens up to the end of the last sequence, without reading all lengths.

    Raises:
        IndexedFormatError: The last entries contradict each other.
    """
    with idx_path.open("rb") as stream:
        lengths_end = HEADER.size + sequences * _BYTES_PER_LENGTH
        offsets_end = lengths_end + sequences * _BYTES_PER_OFFSET
        boundaries_end = offsets_end + boundaries * _BYTES_PER_BOUNDARY
        length = _read_int_before(lengths_end, stream, size=_BYTES_PER_LENGTH) if sequences else 0
        offset = _read_int_before(offsets_end, stream, size=_BYTES_PER_OFFSET) if sequences else 0
        last = _read_int_before(boundaries_end, stream, size=_BYTES_PER_BOUNDARY)
    if last != sequences or length < 0 or offset < 0 or offset % itemsize:
        raise IndexedFormatError(
            f"{idx_path}: the last document ends at sequence {last} of {sequences}, and the last sequence has {length} "
            f"tokens at byte {offset}; the entries contradict each other. Build the pair again."
        )
    return offset // itemsize + length


def _read_int_before(end: int, stream: BinaryIO, *, size: int) -> int:
    """Return the integer of `size` bytes that ends at a byte of a file."""
    stream.seek(end - size)
    return int.from_bytes(stream.read(size), "little", signed=True)
