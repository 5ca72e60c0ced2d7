"""Adapter for pyarrow: rows of Parquet and Arrow files in batches."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import ipc, parquet

from mb_data.errors import BadDocumentError
from mb_data.text.document_rows import require_columns
from mb_data.text.input_files import is_local, is_parquet

_MAGIC = b"ARROW1"
"""First bytes of Arrow's file format. Files of the streaming format, which Hugging Face writes, have none."""


def read_table(
    path: Path,
    *,
    columns: Sequence[str] | None,
    batch_bytes: int,
    groups: tuple[int, int | None] = (0, None),
) -> Iterator[tuple[int, list[dict[str, Any]], float]]:
    """Yield rows in batches of about `batch_bytes`, with the number of the first and the fraction read of the file.

    Rows are counted from 1, from the beginning of the file.

    Args:
        path: Parquet or Arrow file.
        columns: Columns to read; None: all.
        batch_bytes: Size of a batch in bytes, in memory.
        groups: Row groups of a Parquet file to read: the first, and the end (exclusive; None: all).

    Raises:
        BadDocumentError: The file does not have the format of its suffix, or lacks a column.
    """
    try:
        table = _parquet(path, columns, groups) if is_parquet(path) else _arrow(path, columns)
        for first, batch, fraction in table:
            size = max(1, batch.num_rows * batch_bytes // max(batch.nbytes, 1))
            for start in range(0, batch.num_rows, size):
                yield first + start, batch.slice(start, size).to_pylist(), fraction
    except (pyarrow.ArrowException, OSError) as error:
        raise BadDocumentError(_unreadable(path, error)) from error


def write_packs(path: Path, rows: list[dict[str, list[int]]]) -> None:
    """Write packs as a Parquet file: `input_ids`, `loss_mask` and `seq_start_id`, lists of integers."""
    integers = pyarrow.list_(pyarrow.int32())
    columns = {"input_ids": integers, "loss_mask": pyarrow.list_(pyarrow.uint8()), "seq_start_id": integers}
    table = pyarrow.Table.from_pylist(rows, schema=pyarrow.schema(columns))
    parquet.write_table(table, path, compression="zstd", row_group_size=1000)


def row_group_bytes(path: Path) -> list[int]:
    """Return the size of each row group of a Parquet file: of its part of the file, in bytes.

    Raises:
        BadDocumentError: The file is not Parquet.
    """
    try:
        with closing(parquet.ParquetFile(_source(path))) as file:
            groups = map(file.metadata.row_group, range(file.metadata.num_row_groups))
            return [
                sum(group.column(number).total_compressed_size for number in range(group.num_columns))
                for group in groups
            ]
    except (pyarrow.ArrowException, OSError) as error:
        raise BadDocumentError(_unreadable(path, error)) from error


def _parquet(
    path: Path, columns: Sequence[str] | None, groups: tuple[int, int | None]
) -> Iterator[tuple[int, Any, float]]:
    with closing(parquet.ParquetFile(_source(path))) as file:
        require_columns(path, file.schema_arrow.names, columns)
        numbers = range(file.metadata.num_row_groups)
        total = max(file.metadata.num_rows, 1)
        done_rows = sum(file.metadata.row_group(number).num_rows for number in numbers[: groups[0]])
        wanted = list(numbers[groups[0] : groups[1]])
        for batch in file.iter_batches(batch_size=8192, columns=columns, row_groups=wanted):
            yield 1 + done_rows, batch, (done_rows + batch.num_rows) / total
            done_rows += batch.num_rows


def _arrow(path: Path, columns: Sequence[str] | None) -> Iterator[tuple[int, Any, float]]:
    """Yield (first row, record batch, fraction read) of an Arrow file or stream; rows are counted from 1."""
    size, first = path.stat().st_size, 1
    with _mapped(path) as source:
        is_file = source.read(len(_MAGIC)) == _MAGIC
        source.seek(0)
        reader = ipc.open_file(source) if is_file else ipc.open_stream(source)
        require_columns(path, reader.schema.names, columns)
        count = reader.num_record_batches if is_file else None
        batches = map(reader.get_batch, range(count)) if count is not None else reader
        for number, batch in enumerate(batches, start=1):
            fraction = number / count if count else source.tell() / size
            yield first, (batch if columns is None else batch.select(list(columns))), fraction
            first += batch.num_rows


def _mapped(path: Path) -> Any:
    return pyarrow.memory_map(str(path)) if is_local(path) else pyarrow.PythonFile(path.open("rb"))


def _source(path: Path) -> Any:
    """Return what pyarrow opens: a path, or the stream of a file in object storage."""
    return path if is_local(path) else path.open("rb")


def _unreadable(path: Path, error: Exception) -> str:
    return (
        f"{path}: pyarrow cannot read it as {path.suffix} ({error}); it is truncated, or has another format. "
        "Copy it again, or correct the suffix."
    )
