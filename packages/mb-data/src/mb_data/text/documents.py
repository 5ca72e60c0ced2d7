"""Reader for documents of text files, JSON lines and tables, in chunks of bounded size."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from mb_data.errors import BadDocumentError, DataPathError
from mb_data.text.compressed import content_suffix, decompressed, strip_compression
from mb_data.text.document_rows import is_table, read_rows, reject_unsupported

CHUNK_BYTES = 1 << 20
"""Size at which a chunk is closed, in bytes. Documents are never split, so a larger document is a chunk by itself."""

LONGEST_LINE = 1 << 26
"""Bytes of the longest JSON line. Parsing and tokenizing one takes some 18 times its size in memory."""

_SAVED_STATE, _SAVED_SPLITS = "state.json", "dataset_dict.json"
"""Files in a folder that Hugging Face's `save_to_disk` wrote, which list its files and its splits."""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

LINE_SUFFIXES = (".jsonl", ".ndjson", ".jsonlines", ".ldjson")
"""Suffixes of JSON lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentChunk:
    """Consecutive documents of one file, not decoded yet."""

    path: Path
    first_line: int | None
    """Number of the first JSON line or row, counted from 1. None: a text file, which is one document."""
    documents: Sequence[bytes | Mapping[str, Any]]
    """Content of the text file, JSON lines, or rows of a table."""
    read_bytes: int
    """Bytes of the input file that were read for this chunk, before decompression."""

    def objects(self) -> Iterator[tuple[Mapping[str, Any], str]]:
        """Yield each row or JSON object with its location, for messages. Empty lines are skipped.

        Raises:
            BadDocumentError: A line is not a JSON object in UTF-8.
        """
        for number, document in enumerate(self.documents, start=self.first_line or 1):
            if isinstance(document, bytes):
                values = parse_object(document, location=f"{self.path}:{number}")
                if values is not None:
                    yield values, f"{self.path}:{number}"
            else:
                yield document, f"{self.path}: row {number}"


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
    """Return the files of a folder, recursive and sorted, except those with a path component that starts with a dot.

    Of a data set that Hugging Face's `save_to_disk` wrote, only the files with rows are returned.
    """
    files = [path for path in folder.rglob("*") if path.is_file()]
    saved = [path.parent for path in files if path.name == _SAVED_STATE and _saved_files(path.parent)]
    rows = {folder: {*_saved_files(folder)} for folder in saved}
    return sorted(
        path
        for path in files
        if path.name != _SAVED_SPLITS
        and path.name in rows.get(path.parent, (path.name,))
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )


def _saved_files(folder: Path) -> list[str]:
    """Return the names of the files with rows that the state of a saved data set lists; empty if it is none."""
    try:
        listed = json.loads((folder / _SAVED_STATE).read_bytes())["_data_files"]
        return [entry["filename"] for entry in listed]
    except (ValueError, KeyError, TypeError):
        return []


def read_chunks(
    files: Iterable[Path], *, chunk_bytes: int = CHUNK_BYTES, columns: Sequence[str] | None = None
) -> Iterator[DocumentChunk]:
    """Read files in order, in chunks of about `chunk_bytes` of text.

    Args:
        files: Files, whose format is determined by their suffix.
        chunk_bytes: Size at which a chunk is closed.
        columns: Columns of tables to read, which are required; None: all.

    Raises:
        BadDocumentError: A file cannot be read, or its format is not supported.
        FormatLibraryError: The library that reads the format is not installed.
    """
    for path in files:
        reject_unsupported(path)
        if is_json(path):
            yield from _line_chunks(path, chunk_bytes)
        elif is_table(path):
            yield from _row_chunks(path, chunk_bytes, columns)
        else:
            with path.open("rb") as raw, decompressed(raw, path) as stream:
                content = stream.read()
            reject_json_lines(content, path)
            yield DocumentChunk(
                path=path, first_line=None, documents=[content], read_bytes=path.stat().st_size
            )


def decode_texts(chunk: DocumentChunk, *, json_key: str) -> Iterator[str]:
    """Decode the documents of a chunk. Empty documents and empty lines are skipped.

    Raises:
        BadDocumentError: A document is not UTF-8, or a line is not a JSON object with a string at `json_key`.
    """
    if chunk.first_line is None:
        contents = (document for document in chunk.documents if isinstance(document, bytes))
        texts = (_decode(content, location=str(chunk.path)) for content in contents)
    else:
        texts = (
            _text_of(values, json_key=json_key, location=location) for values, location in chunk.objects()
        )
    yield from filter(None, texts)


def read_line(stream: BinaryIO, *, location: str) -> bytes:
    """Return the next line of a file of JSON lines; empty at the end.

    Raises:
        BadDocumentError: The line is longer than `LONGEST_LINE`; its rest is not read.
    """
    line = stream.readline(LONGEST_LINE + 1)
    if len(line) > LONGEST_LINE:
        raise BadDocumentError(
            f"{location}: the line has more than {LONGEST_LINE >> 20} MiB; it would take {18 * LONGEST_LINE >> 30} GiB "
            "of memory and more. Write each document as a JSON object on a line of its own, and split longer ones."
        )
    return line


def parse_object(line: bytes, *, location: str) -> dict[str, Any] | None:
    """Parse a line of a file of JSON lines. Return None for an empty line.

    Raises:
        BadDocumentError: The line is not a JSON object in UTF-8.
    """
    text = _decode(line, location=location).removeprefix("\ufeff")  # byte order mark of a file's first line
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
    first = content.lstrip(_BYTE_ORDER_MARK).partition(b"\n")[0]
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


def _line_chunks(path: Path, chunk_bytes: int) -> Iterator[DocumentChunk]:
    lines: list[bytes] = []
    size, first, position = 0, 1, 0
    with path.open("rb") as raw, decompressed(raw, path) as stream:
        while line := read_line(stream, location=f"{path}:{first + len(lines)}"):
            lines.append(line)
            size += len(line)
            if size >= chunk_bytes:
                read_bytes = raw.tell() - position
                yield DocumentChunk(path=path, first_line=first, documents=lines, read_bytes=read_bytes)
                position, first, lines, size = raw.tell(), first + len(lines), [], 0
        yield DocumentChunk(path=path, first_line=first, documents=lines, read_bytes=raw.tell() - position)


def _row_chunks(path: Path, chunk_bytes: int, columns: Sequence[str] | None) -> Iterator[DocumentChunk]:
    first, position = 1, 0
    for rows, read_bytes in read_rows(path, columns=columns, batch_bytes=chunk_bytes):
        yield DocumentChunk(path=path, first_line=first, documents=rows, read_bytes=read_bytes - position)
        first, position = first + len(rows), read_bytes


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
            f"{location}: has no key {json_key!r} (found keys {', '.join(values)}). Correct the line, or pass "
            "the key of the text: --json-key (dataset.json_key in a run)."
        )
    text = values[json_key]
    if not isinstance(text, str):
        raise BadDocumentError(
            f"{location}: the value of {json_key!r} is not a string ({_format_value(text)}); only a string can be "
            "tokenized. Put it in quotes, or pass another --json-key "
            "(dataset.json_key in a run)."
        )
    return require_encodable(text, location=location)


def _format_value(value: object) -> str:
    """Return a JSON value with its type, truncated to 40 characters."""
    text = json.dumps(value, ensure_ascii=False, default=repr)  # a table may have bytes, dates and decimals
    return f"{text if len(text) <= 40 else text[:40] + '...'}, of type {type(value).__name__}"
