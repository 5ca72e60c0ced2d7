"""Rows of tables as documents: CSV files, and Parquet and Arrow files with the extra `parquet`."""

import csv
import io
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mb_data.errors import BadDocumentError
from mb_data.libraries import import_library
from mb_data.text.compressed import compression, content_suffix, decompressed
from mb_data.text.input_files import InputRange, open_input

DELIMITERS = {".csv": ",", ".tsv": "\t"}
"""Suffix of a table of text -> delimiter of its columns."""

_ARROW = (".parquet", ".pq", ".arrow", ".feather")
_UNSUPPORTED = (".orc", ".avro", ".zip", ".tar", ".tgz", ".7z", ".lz4", ".xlsx", ".pkl", ".safetensors")

Rows = list[dict[str, Any]]


def is_table(path: Path) -> bool:
    """Return True if a file is read as rows of a table, by its suffix."""
    return content_suffix(path) in (*DELIMITERS, *_ARROW)


def reject_unsupported(path: Path) -> None:
    """Reject a file whose suffix is that of a format which is not text and is not supported.

    Raises:
        BadDocumentError: The format is not supported.
    """
    suffix = content_suffix(path)
    if suffix in _UNSUPPORTED:
        raise BadDocumentError(
            f"{path}: {suffix} files are not supported; their content would be tokenized as text. Convert it to "
            ".jsonl, .parquet, .csv or text files, optionally compressed as .gz or .zst."
        )


def read_rows(
    part: InputRange, *, columns: Sequence[str] | None, batch_bytes: int
) -> Iterator[tuple[int, Rows, int]]:
    """Yield the rows of a table in batches of about `batch_bytes`.

    Each comes with the number of its first row, counted from 1, and the bytes of the file read so far.

    Args:
        part: File with the suffix of a table; of Parquet files also a range of row groups.
        columns: Columns that are required, and read if the format allows it; None: all.
        batch_bytes: Size of a batch in bytes.

    Raises:
        BadDocumentError: The file does not have the format of its suffix, or lacks a column.
        FormatLibraryError: The library that reads the format is not installed.
    """
    path, first = part.path, 1
    if content_suffix(path) in DELIMITERS:
        for rows, read_bytes in _csv_rows(path, columns=columns, batch_bytes=batch_bytes):
            yield first, rows, read_bytes
            first += len(rows)
        return
    if compression(path) is not None:
        raise BadDocumentError(
            f"{path}: is a compressed {content_suffix(path)}; the format itself compresses its columns, and "
            "is read at random positions. Decompress the file."
        )
    size, library = path.stat().st_size, arrow_library(path)
    table = library.read_table(path, columns=columns, batch_bytes=batch_bytes, groups=(part.start, part.end))
    for first_row, rows, fraction in table:
        yield first_row, rows, int(size * fraction)


def _csv_rows(path: Path, *, columns: Sequence[str] | None, batch_bytes: int) -> Iterator[tuple[Rows, int]]:
    """Yield rows of a CSV file in batches, each with the bytes of the file that are read so far.

    Raises:
        BadDocumentError: A line is not CSV, or not UTF-8.
    """
    csv.field_size_limit(sys.maxsize)  # the default rejects documents of more than 128 KiB
    rows: Rows = []
    size = 0
    with open_input(path) as raw, decompressed(raw, path) as stream:
        text = io.TextIOWrapper(stream, encoding="utf-8-sig", newline="")
        reader = csv.reader(text, delimiter=DELIMITERS[content_suffix(path)], strict=True)
        try:
            header = next(reader, [])
            if header:  # an empty file has no rows
                require_columns(path, header, columns)
            for values in filter(None, reader):
                rows.append(_row(path, header, values, line=reader.line_num))
                size += sum(map(len, values))
                if size >= batch_bytes:
                    yield rows, raw.tell()
                    rows, size = [], 0
        except (csv.Error, UnicodeDecodeError) as error:
            raise BadDocumentError(
                f"{path}:{reader.line_num + 1}: is not CSV in UTF-8 ({error}). Correct the line, or convert the file."
            ) from error
        yield rows, path.stat().st_size


def _row(path: Path, header: list[str], values: list[str], *, line: int) -> dict[str, Any]:
    if len(values) != len(header):
        raise BadDocumentError(
            f"{path}:{line}: has {len(values)} values, but the first line names {len(header)} columns. Put values with "
            "separators or line ends in quotes."
        )
    return dict(zip(header, values, strict=True))


def require_columns(path: Path, available: Sequence[str], columns: Sequence[str] | None) -> None:
    """Reject a table that lacks a column.

    Raises:
        BadDocumentError: It lacks one.
    """
    missing = [name for name in columns or () if name not in available]
    if missing:
        raise BadDocumentError(
            f"{path}: has no column {missing[0]!r} (found columns {', '.join(available) or 'none'}). Pass the name of "
            "the column with the text: --json-key (dataset.json_key in a run)."
        )


def arrow_library(path: Path) -> Any:
    """Return the adapter for pyarrow, which reads and writes a file.

    Raises:
        FormatLibraryError: pyarrow is not installed.
    """
    return import_library(
        "mb_data.text.arrow_tables",
        where=str(path),
        purpose=f"handles {path.suffix} files",
        extra="parquet",
        library="pyarrow",
    )
