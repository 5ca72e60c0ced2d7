"""Reader for documents of text files and JSON lines, in chunks of bounded size."""

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from mb_data.errors import BadDocumentError, DataPathError

CHUNK_BYTES = 1 << 20
"""Size at which a chunk is closed, in bytes. Documents are never split, so a larger document is a chunk by itself."""

_JSON_SUFFIXES = (".jsonl", ".json")


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentChunk:
    """Consecutive documents of one file, not decoded yet."""

    path: Path
    first_line: int | None
    """Number of the first JSON line, counted from 1. None: a text file, which is one document."""
    documents: list[bytes]
    read_bytes: int
    """Bytes of the input file that were read for this chunk, before decompression."""


def input_files(inputs: Sequence[str | Path]) -> list[Path]:
    """Return the given files, and the files of the given folders: recursive, sorted, without hidden entries.

    Raises:
        DataPathError: An input does not exist, or the inputs contain no files.
    """
    files: list[Path] = []
    for entry in map(Path, inputs):
        if not entry.exists():
            raise DataPathError(f"{entry}: no such file or folder, but it is an input. Correct the path.")
        files += visible_files(entry) if entry.is_dir() else [entry]
    if not files:
        raise DataPathError(
            f"{', '.join(map(str, inputs)) or 'inputs'}: contains no files; there is nothing to tokenize. "
            "Pass text files or JSON lines."
        )
    return files


def visible_files(folder: Path) -> list[Path]:
    """Return the files of a folder, recursive and sorted, except those with a path component that starts with a dot."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return sorted(
        path for path in files if not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )


def read_chunks(files: Iterable[Path], *, chunk_bytes: int = CHUNK_BYTES) -> Iterator[DocumentChunk]:
    """Read files in order, in chunks of about `chunk_bytes` of text."""
    for path in files:
        if is_json(path):
            yield from _line_chunks(path, chunk_bytes)
        else:
            with path.open("rb") as raw, _decompressed(raw, path) as stream:
                content = stream.read()
            yield DocumentChunk(
                path=path, first_line=None, documents=[content], read_bytes=path.stat().st_size
            )


def decode_texts(chunk: DocumentChunk, *, json_key: str) -> Iterator[str]:
    """Decode the documents of a chunk. Empty documents and empty lines are skipped.

    Raises:
        BadDocumentError: A document is not UTF-8, or a line is not a JSON object with a string at `json_key`.
    """
    for number, document in enumerate(chunk.documents):
        location = (
            str(chunk.path) if chunk.first_line is None else f"{chunk.path}:{chunk.first_line + number}"
        )
        if chunk.first_line is None:
            text = _decode(document, location=location)
        else:
            values = parse_object(document, location=location)
            text = "" if values is None else _text_of(values, json_key=json_key, location=location)
        if text:
            yield text


def parse_object(line: bytes, *, location: str) -> dict[str, Any] | None:
    """Parse a line of a file of JSON lines. Return None for an empty line.

    Raises:
        BadDocumentError: The line is not a JSON object in UTF-8.
    """
    text = _decode(line, location=location)
    if not text.strip():
        return None
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        raise BadDocumentError(
            f"{location}: is not JSON ({error}); every line must be a JSON object. Correct the line."
        ) from error
    if not isinstance(values, dict):
        raise BadDocumentError(
            f"{location}: is a {type(values).__name__}; every line must be a JSON object. Correct the line."
        )
    return values


def require_encodable(text: str, *, location: str) -> str:
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
    """Return True if a file is read as JSON lines: `.jsonl` or `.json`, optionally followed by `.gz`."""
    name = path.with_suffix("") if path.suffix == ".gz" else path
    return name.suffix in _JSON_SUFFIXES


def _line_chunks(path: Path, chunk_bytes: int) -> Iterator[DocumentChunk]:
    lines: list[bytes] = []
    size, first, position = 0, 1, 0
    with path.open("rb") as raw, _decompressed(raw, path) as stream:
        for line in stream:
            lines.append(line)
            size += len(line)
            if size >= chunk_bytes:
                read_bytes = raw.tell() - position
                yield DocumentChunk(path=path, first_line=first, documents=lines, read_bytes=read_bytes)
                position, first, lines, size = raw.tell(), first + len(lines), [], 0
        yield DocumentChunk(path=path, first_line=first, documents=lines, read_bytes=raw.tell() - position)


@contextmanager
def _decompressed(raw: BinaryIO, path: Path) -> Iterator[BinaryIO]:
    try:
        yield cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if path.suffix == ".gz" else raw
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise BadDocumentError(
            f"{path}: cannot be decompressed ({error}); it is truncated, or not gzip. Copy it again."
        ) from error


def _decode(content: bytes, *, location: str) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise BadDocumentError(
            f"{location}: is not UTF-8 ({error}). Convert the file, or remove it from the inputs."
        ) from error


def _text_of(values: Mapping[str, Any], *, json_key: str, location: str) -> str:
    if json_key not in values:
        raise BadDocumentError(
            f"{location}: has no key {json_key!r} (found keys {', '.join(values)}). Correct the line, or set another "
            "json_key."
        )
    text = values[json_key]
    if not isinstance(text, str):
        raise BadDocumentError(
            f"{location}: the value of {json_key!r} is not a string ({_format_value(text)}); only a string can be "
            "tokenized. Put it in quotes, or set another json_key."
        )
    return require_encodable(text, location=location)


def _format_value(value: object) -> str:
    """Return a JSON value with its type, truncated to 40 characters."""
    text = json.dumps(value, ensure_ascii=False)
    return f"{text if len(text) <= 40 else text[:40] + '...'}, of type {type(value).__name__}"
