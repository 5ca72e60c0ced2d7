"""Adapter for pyarrow: rows of Parquet and Arrow files in batches."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import ipc, parquet

from mb_data.errors import BadDocumentError

_MAGIC = b"ARROW1"
"""First bytes of Arrow's file format. Files of the streaming format, which Hugging Face writes, have none."""


def read_table(
    path: Path, *, columns: Sequence[str] | None, batch_bytes: int
) -> Iterator[tuple[list[dict[str, Any]], float]]:
    """Yield rows in batches of about `batch_bytes`, each with the fraction of the file that has been read.

    Args:
        path: Parquet or Arrow file.
        columns: Columns to read; None: all.
        batch_bytes: Size of a batch in bytes, in memory.

    Raises:
        BadDocumentError: The file does not have the format of its suffix, or lacks a column.
    """
    try:
        is_parquet = path.suffix.lower() in (".parquet", ".pq")
        for batch, fraction in (_parquet if is_parquet else _arrow)(path, columns):
            size = max(1, batch.num_rows * batch_bytes // max(batch.nbytes, 1))
            for start in range(0, batch.num_rows, size):
                yield batch.slice(start, size).to_pylist(), fraction
    except (pyarrow.ArrowException, OSError) as error:
        raise BadDocumentError(
            f"{path}: pyarrow cannot read it as {path.suffix} ({error}); it is truncated, or has another format. "
            "Copy it again, or correct the suffix."
        ) from error


def write_packs(path: Path, rows: list[dict[str, list[int]]]) -> None:
    """Write packs as a Parquet file: `input_ids`, `loss_mask` and `seq_start_id`, lists of integers."""
    integers = pyarrow.list_(pyarrow.int32())
    columns = {"input_ids": integers, "loss_mask": pyarrow.list_(pyarrow.uint8()), "seq_start_id": integers}
    table = pyarrow.Table.from_pylist(rows, schema=pyarrow.schema(columns))
    parquet.write_table(table, path, compression="zstd", row_group_size=1000)


def _parquet(path: Path, columns: Sequence[str] | None) -> Iterator[tuple[Any, float]]:
    with closing(parquet.ParquetFile(path)) as file:
        _require_columns(path, file.schema_arrow.names, columns)
        done_rows, total = 0, max(file.metadata.num_rows, 1)
        for batch in file.iter_batches(batch_size=8192, columns=columns):
            done_rows += batch.num_rows
            yield batch, done_rows / total


def _arrow(path: Path, columns: Sequence[str] | None) -> Iterator[tuple[Any, float]]:
    size = path.stat().st_size
    with pyarrow.memory_map(str(path)) as source:
        is_file = source.read(len(_MAGIC)) == _MAGIC
        source.seek(0)
        reader = ipc.open_file(source) if is_file else ipc.open_stream(source)
        _require_columns(path, reader.schema.names, columns)
        count = reader.num_record_batches if is_file else None
        batches = map(reader.get_batch, range(count)) if count is not None else reader
        for number, batch in enumerate(batches, start=1):
            fraction = number / count if count else source.tell() / size
            yield (batch if columns is None else batch.select(list(columns))), fraction


def _require_columns(path: Path, available: Sequence[str], columns: Sequence[str] | None) -> None:
    missing = [name for name in columns or () if name not in available]
    if missing:
        raise BadDocumentError(
            f"{path}: has no column {missing[0]!r} (found columns {', '.join(available) or 'none'}). Pass the name of "
            "the column with the text: --json-key (dataset.json_key in a run)."
        )
