"""Reader for documents of text files, JSON lines and tables, in chunks of bounded size."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from mb_data.errors import BadDocumentError
from mb_data.text.compressed import content_suffix, decompressed, strip_compression
from mb_data.text.document_rows import is_table, read_rows, reject_unsupported
from mb_data.text.input_files import InputRange, open_input

CHUNK_BYTES = 1 << 20
"""Size at which a chunk is closed, in bytes. Documents are never split, so a larger document is a chunk by itself."""

LONGEST_LINE = 1 << 26
"""Bytes of the longest JSON line. Parsing and tokenizing one takes some 18 times its size in memory."""

BYTE_ORDER_MARK = b"\xef\xbb\xbf"

LINE_SUFFIXES = (".jsonl", ".ndjson", ".jsonlines", ".ldjson")
"""Suffixes of JSON lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """File and line of a document, for messages."""

    path: Path
    number: int | None
    """Number of the JSON line or row, counted from 1 at `origin`. None: the file is the document."""
    is_row: bool = False
    origin: int = 0
    """Byte at which the count of lines begins."""

    def __str__(self) -> str:
        """Return file and line; the lines before `origin` are counted only here."""
        if self.number is None:
            return str(self.path)
        if self.is_row:
            return f"{self.path}: row {self.number}"
        return f"{self.path}:{_count_lines(self.path, self.origin) + self.number}"


Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentChunk:
    """Consecutive documents of one file, not decoded yet."""

    path: Path
    first_line: int | None
    """Number of the first JSON line or row, counted from 1. None: a text file, which is one document."""
    documents: Sequence[bytes | Row | BadDocumentError]
    """Content of the text file, JSON lines, or rows of a table. An error: a line that is too long to be read."""
    read_bytes: int
    """Bytes of the input file that were read for this chunk, before decompression."""
    origin: int = 0
    """Byte of the file at which the count of lines begins."""

    def located(self) -> Iterator[tuple[bytes | Row | BadDocumentError, Location]]:
        """Yield each document with its location."""
        for offset, document in enumerate(self.documents):
            number = None if self.first_line is None else self.first_line + offset
            is_row = not isinstance(document, bytes | BadDocumentError)
            yield document, Location(path=self.path, number=number, is_row=is_row, origin=self.origin)

    def objects(self) -> Iterator[tuple[Row, str]]:
        """Yield each row or JSON object with its location, for messages. Empty lines are skipped.

        Raises:
            BadDocumentError: A line is not a JSON object in UTF-8.
        """
        for document, location in self.located():
            values = parse_document(document, location=location)
            if values is not None:
                yield values, str(location)


def read_chunks(
    files: Iterable[Path | InputRange],
    *,
    chunk_bytes: int = CHUNK_BYTES,
    columns: Sequence[str] | None = None,
) -> Iterator[DocumentChunk]:
    """Read files in order, in chunks of about `chunk_bytes` of text.

    Args:
        files: Files, whose format is determined by their suffix, and ranges of files.
        chunk_bytes: Size at which a chunk is closed.
        columns: Columns of tables to read, which are required; None: all.

    Raises:
        BadDocumentError: A file cannot be read, or its format is not supported.
        FormatLibraryError: The library that reads the format is not installed.
    """
    for file in files:
        part = file if isinstance(file, InputRange) else InputRange(path=file)
        path = part.path
        reject_unsupported(path)
        if is_json(path):
            yield from _line_chunks(part, chunk_bytes)
        elif is_table(path):
            position = 0
            for first, rows, end in read_rows(part, columns=columns, batch_bytes=chunk_bytes):
                yield DocumentChunk(path=path, first_line=first, documents=rows, read_bytes=end - position)
                position = end
        else:
            with open_input(path) as raw, decompressed(raw, path) as stream:
                content = stream.read()
            reject_json_lines(content, path)
            yield DocumentChunk(
                path=path, first_line=None, documents=[content], read_bytes=path.stat().st_size
            )


def parse_document(
    document: bytes | Row | BadDocumentError, *, location: Location, json_key: str = "text"
) -> Row | None:
    """Return the row of a document; of a text file one with its text at `json_key`. None for an empty line.

    Raises:
        BadDocumentError: The document is not UTF-8, or a line is not a JSON object or was too long to be read.
    """
    if isinstance(document, BadDocumentError):
        raise document
    if not isinstance(document, bytes):
        return document
    if location.number is None:
        return {json_key: _decode(document, location=location)}
    return parse_object(document, location=location)


def text_of_row(row: Row, *, json_key: str, location: object) -> str:
    """Return the text of a row.

    Raises:
        BadDocumentError: The row has no string at `json_key`, or one that cannot be encoded.
    """
    if json_key not in row:
        raise BadDocumentError(
            f"{location}: has no key {json_key!r} (found keys {', '.join(row)}). Correct the line, or pass "
            "the key of the text: --json-key (dataset.json_key in a run)."
        )
    text = row[json_key]
    if not isinstance(text, str):
        raise BadDocumentError(
            f"{location}: the value of {json_key!r} is not a string ({_format_value(text)}); only a string can be "
            "tokenized. Convert it to text (in JSON: in quotes), or pass another --json-key "
            "(dataset.json_key in a run)."
        )
    return require_encodable(text, location=location)


def parse_object(line: bytes, *, location: object) -> dict[str, Any] | None:
    """Parse a line of a file of JSON lines. Return None for an empty line.

    Raises:
        BadDocumentError: The line is not a JSON object in UTF-8.
    """
    text = _decode(line, location=location)
    if not text.strip():
        return None
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:  # also integers of too many digits, and deep nesting
        raise BadDocumentError(
            f"{location}: is not JSON ({error}); every line must be a JSON object. Correct the line."
        ) from error
    if not isinstance(values, dict):
        raise BadDocumentError(
            f"{location}: is a {type(values).__name__}; every line must be a JSON object. Correct the line."
        )
    return values


def require_encodable(text: str, *, location: object) -> str:
    """Return a text of a JSON file, in which an escape may be half of a surrogate pair.

    Raises:
        BadDocumentError: The text contains an unpaired surrogate.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadDocumentError(
            f"{location}: has an unpaired surrogate ({error.reason} at {error.start}); no tokenizer accepts it. "
            "Correct the line."
        ) from error
    return text


def is_json(path: Path) -> bool:
    """Return True if a file is read as JSON lines: `.json` or one of `LINE_SUFFIXES`, optionally compressed."""
    return content_suffix(path) in (*LINE_SUFFIXES, ".json")


def reject_json_lines(content: bytes, path: Path, *, json_key: str | None = None) -> None:
    """Reject a text whose first line is a JSON object, which is not training text but a file of JSON lines.

    Args:
        content: The text.
        path: Its file.
        json_key: Key that the object must have; None: any object is rejected.

    Raises:
        BadDocumentError: The first line is such an object.
    """
    first = content.lstrip(BYTE_ORDER_MARK).partition(b"\n")[0]
    if not first.startswith(b"{") or len(first) > LONGEST_LINE:
        return
    try:
        values = parse_object(first, location=str(path))
    except BadDocumentError:
        return
    if values is not None and (json_key is None or json_key in values):
        raise BadDocumentError(
            f"{path}: the first line is a JSON object, but the suffix {path.suffix or '(none)'} is read as text, with "
            f"keys and braces. Rename the file to {strip_compression(path).stem}.jsonl, or, if it is text, begin it "
            "with an empty line."
        )


def _line_chunks(part: InputRange, chunk_bytes: int) -> Iterator[DocumentChunk]:
    """Yield the lines of a part of a file in chunks; the last chunk may be empty, and reports the bytes that remain.

    A part begins at the first line that starts in it, and ends with the last one that does.
    """
    path = part.path
    lines: list[bytes | BadDocumentError] = []
    size, first = 0, 1

    def chunk() -> DocumentChunk:
        read_bytes = raw.tell() - position
        return DocumentChunk(
            path=path, first_line=first, documents=lines, read_bytes=read_bytes, origin=origin
        )

    with open_input(path) as raw, decompressed(raw, path) as stream:
        if part.start:
            raw.seek(part.start - 1)  # the byte before: it may be the end of a line
            _skip_line(stream)
        origin = at = position = raw.tell() if part.start else 0
        while (part.end is None or at < part.end) and (line := stream.readline(LONGEST_LINE + 1)):
            at += len(line)
            size += len(line)
            if len(line) > LONGEST_LINE:
                at += 0 if line.endswith(b"\n") else _skip_line(stream)
                where = Location(path=path, number=first + len(lines), origin=origin)
                lines.append(_overlong(where))
            else:
                lines.append(line)
            if size >= chunk_bytes:
                yield chunk()
                position, first, lines, size = raw.tell(), first + len(lines), [], 0
        yield chunk()


def _skip_line(stream: BinaryIO) -> int:
    """Read to the end of the line in bounded memory. Return the number of bytes."""
    number = 0
    while piece := stream.readline(CHUNK_BYTES):
        number += len(piece)
        if piece.endswith(b"\n"):
            break
    return number


def _overlong(location: Location) -> BadDocumentError:
    return BadDocumentError(
        f"{location}: the line has more than {LONGEST_LINE >> 20} MiB; it would take {18 * LONGEST_LINE >> 30} GiB "
        "of memory and more. Write each document as a JSON object on a line of its own, and split longer ones."
    )


def _count_lines(path: Path, end: int) -> int:
    """Return the number of lines in the bytes of an uncompressed file before `end`."""
    number = 0
    with open_input(path) as stream:
        while end > 0 and (block := stream.read(min(CHUNK_BYTES, end))):
            number += block.count(b"\n")
            end -= len(block)
    return number


def _decode(content: bytes, *, location: object) -> str:
    """Return a text without the byte order mark with which the file may begin."""
    try:
        return content.decode().removeprefix("\ufeff")  # much faster than "utf-8-sig"
    except UnicodeDecodeError as error:
        raise BadDocumentError(
            f"{location}: is not UTF-8 ({error}). Convert the file, or remove it from the inputs."
        ) from error


def _format_value(value: object) -> str:
    """Return a JSON value with its type, truncated to 40 characters."""
    text = json.dumps(value, ensure_ascii=False, default=repr)  # a table may have bytes, dates and decimals
    return f"{text if len(text) <= 40 else text[:40] + '...'}, of type {type(value).__name__}"
