"""Cut of the input files into shards of about the same size, each of which is read alone."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from mb_data.text.compressed import compression
from mb_data.text.document_rows import arrow_library
from mb_data.text.documents import is_json
from mb_data.text.input_files import InputRange, is_parquet

Shard = tuple[InputRange, ...]


def cut_files(files: Iterable[Path], *, shard_bytes: int) -> Iterator[Shard]:
    """Yield shards of about `shard_bytes` of input, in the order of the files.

    A larger file of JSON lines is cut at line ends, and Parquet between row groups; any other file is read whole, so
    that its shard may be larger. The cut depends on nothing but names, sizes and row groups.

    Raises:
        BadDocumentError: A Parquet file cannot be read.
        FormatLibraryError: The library that reads Parquet is not installed.
    """
    shard: list[InputRange] = []
    size = 0
    for file in files:
        for part, part_bytes in _parts(file, shard_bytes):
            if shard and size + part_bytes > shard_bytes:
                yield tuple(shard)
                shard, size = [], 0
            shard.append(part)
            size += part_bytes
    if shard:
        yield tuple(shard)


def _parts(file: Path, shard_bytes: int) -> Iterator[tuple[InputRange, int]]:
    """Yield the ranges of a file that are at most as large as a shard, if it can be cut, each with its size."""
    size = file.stat().st_size
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
