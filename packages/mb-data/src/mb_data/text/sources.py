"""Source files of a text corpus, their documents, and the assignment of documents to splits."""

import hashlib
import os
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from mb_data.config import TextCorpusConfig
from mb_data.errors import BadDocumentError, CorpusError, DataPathError
from mb_data.megatron.blend import SPLITS
from mb_data.text.compressed import content_suffix, decompressed
from mb_data.text.document_rows import DELIMITERS, is_table, reject_unsupported
from mb_data.text.documents import (
    BYTE_ORDER_MARK,
    LONGEST_LINE,
    DocumentChunk,
    is_json,
    parse_object,
    read_chunks,
    reject_json_lines,
)
from mb_data.text.input_files import read_blocks, visible_files
from mb_data.text.selection import Selection, SelectionReport

_EXCLUDED_FOLDERS = {
    "test",
    "tests",
    "idle_test",
    "idlelib",
    "lib2to3",
    "turtledemo",
    "site-packages",
    "dist-packages",
}
"""Folders of a Python installation that contain tests, or do not belong to the standard library."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """File of a corpus."""

    path: Path
    name: str
    """Path relative to its source, identical on every machine."""
    digest: str
    """Hash of the content."""
    has_rows: bool = False
    """Whether every line or row is a document, instead of the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """Document of a corpus."""

    name: str
    """Name of its file; for a line or row also its number."""
    file: SourceFile
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentSplits:
    """Assignment of documents to train, valid and test, by a hash of their names and the seed only.

    A new document therefore does not change the split of any other. A split without documents whose fraction is not 0
    takes the first document of the largest split.
    """

    config: TextCorpusConfig
    moved: Mapping[str, str]
    """Name of a document -> the split that would be empty without it."""

    @classmethod
    def of(cls, names: Iterable[str], config: TextCorpusConfig) -> "DocumentSplits":
        """Return the assignment of documents with these names.

        Raises:
            CorpusError: There are fewer documents than splits.
        """
        counts = dict.fromkeys(SPLITS, 0)
        first: dict[str, dict[str, int]] = {split: {} for split in SPLITS}
        for name in names:
            split = _split_of(name, config)
            counts[split] += 1
            if name in first[split] or len(first[split]) < len(SPLITS):
                first[split][name] = first[split].get(name, 0) + 1
        held_out = _held_out_splits(config)
        if (distinct := sum(map(len, first.values()))) <= len(held_out):
            raise CorpusError(
                f"dataset.sources: {distinct} document(s) are too few for train, {' and '.join(held_out)}; "
                "a document is never divided, and those of the same name are in one split. Add files, or set "
                "dataset.validation_fraction=0, dataset.test_fraction=0 or both."
            )
        moved = {}
        for split in ("train", *held_out):
            if counts[split] == 0:
                largest = max(SPLITS, key=lambda name: (len(first[name]) > 1, counts[name]))
                name, number = next(iter(first[largest].items()))
                del first[largest][name]
                moved[name] = split
                counts[largest], counts[split] = counts[largest] - number, number
        return cls(config=config, moved=moved)

    def split(self, name: str) -> str:
        """Return the split of the document with this name."""
        return self.moved.get(name) or _split_of(name, self.config)


def read_sources(config: TextCorpusConfig) -> tuple[list[SourceFile], int]:
    """Return the hashed source files in a fixed order, and the number of files that are not UTF-8 text.

    Raises:
        DataPathError: A source does not exist.
        CorpusError: No file contains text.
        BadDocumentError: The format of a file is not supported.
    """
    sources = [_read_source(path, name, config) for path, name in _source_paths(config)]
    files = [file for file in sources if file is not None]
    if not files:
        raise CorpusError(
            f"dataset.sources: {config.sources} contain no text ({len(sources)} files are empty or not UTF-8). "
            "Set files or folders of UTF-8 text."
        )
    return files, len(sources) - len(files)


def verify_sources(config: TextCorpusConfig) -> None:
    """Check that there is a document for every split, reading only as many files as necessary.

    The documents in files of lines or rows are not counted: one such file is sufficient.

    Raises:
        DataPathError: A source does not exist.
        CorpusError: No file contains text, or there are fewer documents than splits.
        BadDocumentError: The format of a file is not supported, or its first row has no text at `json_key`.
    """
    needed = 1 + len(_held_out_splits(config))
    readable = filter(None, (_read_source(path, name, config) for path, name in _source_paths(config)))
    first = []
    for file in readable:
        first.append(file)
        if file.has_rows:
            _read_first_row(file, config)
        if file.has_rows or len(first) == needed:
            return
    files, _ = read_sources(config)
    DocumentSplits.of((file.name for file in files), config)


def _read_first_row(file: SourceFile, config: TextCorpusConfig) -> None:
    """Read the text of the first row of a file, which fails if it has another key or column."""
    selection, report = Selection(json_key=config.json_key), SelectionReport()
    for chunk in read_chunks([file.path], chunk_bytes=1, columns=selection.columns):
        if any(selection.select(chunk, report)):
            return


def split_documents(files: Sequence[SourceFile], config: TextCorpusConfig) -> DocumentSplits:
    """Return the assignment of the documents of a corpus. Files of lines or rows are read to count their documents.

    Raises:
        CorpusError: There are fewer documents than splits.
        BadDocumentError: A line or row is not a document.
    """
    names = (
        (document.name for document in read_documents([file], config)) if file.has_rows else (file.name,)
        for file in files
    )
    return DocumentSplits.of(chain.from_iterable(names), config)


def read_documents(files: Iterable[SourceFile], config: TextCorpusConfig) -> Iterator[Document]:
    """Yield the documents of a corpus, in the order of the files.

    Raises:
        BadDocumentError: A line or row is not a document.
        FormatLibraryError: The library that reads a format is not installed.
    """
    selection, report = Selection(json_key=config.json_key), SelectionReport()
    for file in files:
        number = 0
        for chunk in read_chunks([file.path], columns=selection.columns) if file.has_rows else [_whole(file)]:
            for text, _ in selection.select(chunk, report):
                number += 1
                name = f"{file.name}:{number}" if file.has_rows else file.name
                yield Document(name=name, file=file, text=text)


def _whole(file: SourceFile) -> DocumentChunk:
    """Return a text file as one document, whatever its suffix."""
    with file.path.open("rb") as raw, decompressed(raw, file.path) as stream:
        content = stream.read()
    return DocumentChunk(path=file.path, first_line=None, documents=[content], read_bytes=len(content))


def _held_out_splits(config: TextCorpusConfig) -> list[str]:
    """Return the splits other than train whose fraction is above 0."""
    fractions = {"valid": config.validation_fraction, "test": config.test_fraction}
    return [name for name, fraction in fractions.items() if fraction > 0]


def _source_paths(config: TextCorpusConfig) -> Iterator[tuple[Path, str]]:
    """Yield each file of the sources with its name; without sources, of Python's standard library.

    Raises:
        DataPathError: A source does not exist.
    """
    if config.sources is None:
        library = Path(sysconfig.get_path("stdlib"))
        for parts in sorted(_library_files(library)):
            yield library.joinpath(*parts), "/".join(parts)
        return
    sources = [Path(source) for source in config.sources]
    for source in sources:
        if not source.exists():
            raise DataPathError(f"dataset.sources: {source} does not exist. Correct the path.")
    for source in sources:
        for path in visible_files(source) if source.is_dir() else [source]:
            yield path, path.relative_to(source.parent).as_posix()


def _library_files(library: Path) -> Iterator[tuple[str, ...]]:
    """Yield the parts of the path of each Python file, relative to the library."""
    for folder, folders, names in os.walk(library):
        folders[:] = [name for name in folders if name not in _EXCLUDED_FOLDERS]
        parent = Path(folder).relative_to(library).parts
        yield from ((*parent, name) for name in names if name.endswith(".py"))


def _read_source(path: Path, name: str, config: TextCorpusConfig) -> SourceFile | None:
    """Return a hashed file; None if it is empty or not UTF-8 text."""
    reject_unsupported(path)
    if _has_rows(path, config):
        digest = hashlib.sha256()
        for block in read_blocks(path):
            digest.update(block)
        return SourceFile(path=path, name=name, digest=digest.hexdigest(), has_rows=True)
    with path.open("rb") as raw, decompressed(raw, path) as stream:
        content = stream.read().removeprefix(BYTE_ORDER_MARK)
    try:
        content.decode()
    except UnicodeDecodeError:
        return None
    if not content or b"\0" in content:
        return None
    if not is_json(path):
        reject_json_lines(content, path, json_key=None if _is_named(path, config) else config.json_key)
    return SourceFile(path=path, name=name, digest=hashlib.sha256(content).hexdigest())


def _is_named(path: Path, config: TextCorpusConfig) -> bool:
    return str(path) in {str(Path(source)) for source in config.sources or ()}


def _has_rows(path: Path, config: TextCorpusConfig) -> bool:
    """Return whether the lines or rows of a file are documents.

    A folder of programs may contain JSON and CSV files of another kind, which are text: only a file that the section
    names must have the key.
    """
    suffix = content_suffix(path)
    is_named = _is_named(path, config)
    if is_table(path) and (is_named or suffix not in DELIMITERS):
        return True
    if is_named and is_json(path):
        return True
    if not (is_json(path) or is_table(path)):
        return False
    with path.open("rb") as raw, decompressed(raw, path) as stream:
        first = stream.readline(LONGEST_LINE)
    try:
        if is_json(path):
            values = parse_object(first, location=str(path))
            return values is not None and config.json_key in values
        names = first.decode("utf-8-sig").strip().split(DELIMITERS[suffix])
    except (BadDocumentError, UnicodeDecodeError):
        return False
    return config.json_key in [name.strip('"') for name in names]


def _split_of(name: str, config: TextCorpusConfig) -> str:
    digest = hashlib.sha256(f"{config.split_seed}:{name}".encode()).digest()
    position = int.from_bytes(digest[:8], "big") / 2**64
    if position < config.test_fraction:
        return "test"
    return "valid" if position < config.test_fraction + config.validation_fraction else "train"
