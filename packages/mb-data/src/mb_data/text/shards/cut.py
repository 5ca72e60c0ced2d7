"""Cut of the input files into shards of about the same size, each of which is read alone."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from mb_data.text.compressed import compression
from mb_data.text.document_rows import arrow_library
from mb_data.text.documents import is_json
from mb_data.text.input_files import InputRange, is_local, is_parquet


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardInput:
    """Range of a file, and the state of the file when the plan was made."""

    part: InputRange
    size: int
    version: str | float
    """ETag of an object, commit of a file of the Hugging Face hub, or the time of the last modification."""


Shard = tuple[ShardInput, ...]


def cut_files(files: Iterable[Path], *, shard_bytes: int) -> Iterator[Shard]:
    """Yield shards of about `shard_bytes` of input, in the order of the files.

    A larger file of JSON lines is cut at line ends, and Parquet between row groups; any other file is read whole, so
    that its shard may be larger. The cut depends on nothing but names, sizes and row groups. The state of each file is
    read once: of one in object storage by a request.

    Raises:
        BadDocumentError: A Parquet file cannot be read.
        FormatLibraryError: The library that reads Parquet is not installed.
    """
    shard: list[ShardInput] = []
    shard_size = 0
    for file in files:
        size, version = state_of(file)
        for part, part_bytes in _parts(file, size, shard_bytes):
            if shard and shard_size + part_bytes > shard_bytes:
                yield tuple(shard)
                shard, shard_size = [], 0
            shard.append(ShardInput(part=part, size=size, version=version))
            shard_size += part_bytes
    if shard:
        yield tuple(shard)


def state_of(path: Path) -> tuple[int, str | float]:
    """Return the size and the version of a file; the version is 0 where the storage has none."""
    state = path.stat()
    values = {} if is_local(path) else cast(Any, state).as_info()
    tag = values.get("ETag") or values.get("etag") or values.get("blob_id")
    return state.st_size, str(tag) if tag else float(state.st_mtime or 0.0)


def _parts(file: Path, size: int, shard_bytes: int) -> Iterator[tuple[InputRange, int]]:
    """Yield the ranges of a file that are at most as large as a shard, if it can be cut, each with its size."""
    if size <= shard_bytes or not (is_parquet(file) or (is_json(file) and compression(file) is None)):
        yield InputRange(path=file), size
    elif is_parquet(file):
        yield from _row_group_parts(file, shard_bytes)
    else:
        number = -(-size // shard_bytes)
        edges = [size * part // number for part in range(number)]
        for start, end in zip(edges, [*edges[1:], None], strict=True):
            yield InputRange(path=file, start=start, end=end), (size if end is None else end) - start


def _row_group_parts(file: Path, shard_bytes: int) -> Iterator[tuple[InputRange, int]]:
    start = part_bytes = 0
    sizes = arrow_library(file).row_group_bytes(file)
    for number, size in enumerate(sizes):
        if number > start and part_bytes + size > shard_bytes:
            yield InputRange(path=file, start=start, end=number), part_bytes
            start, part_bytes = number, 0
        part_bytes += size
    yield InputRange(path=file, start=start, end=len(sizes)), part_bytes
