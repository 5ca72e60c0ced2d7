"""Files that are read: those of folders, ranges of large ones, and those of object storage."""

import io
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from mb_data.errors import DataError, DataPathError
from mb_data.libraries import import_library

_BLOCK = 1 << 20

_SAVED_STATE = "state.json"
"""File that lists the files with rows of a folder which Hugging Face's `save_to_disk` wrote."""

_SAVED_SPLITS = "dataset_dict.json"
"""File that lists the splits of such a folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputRange:
    """A file, or a range of one that can be read alone: JSON lines, or row groups of a Parquet file."""

    path: Path
    start: int = 0
    """First byte; of a Parquet file the first row group. A line belongs to the range in which it begins."""
    end: int | None = None
    """End of the range, exclusive; None: the end of the file."""


def located_path(location: str | Path) -> Path:
    """Return a path; for a URL (`s3://`, `gs://`, `hf://`, ...) one of `universal_pathlib`, which has the same methods.

    Raises:
        FormatLibraryError: The location is a URL, and `universal_pathlib` is not installed.
    """
    if "://" not in str(location):
        return Path(location)
    library = import_library(
        "upath",
        where=str(location),
        purpose="reads object storage",
        extra="storage",
        distribution="universal_pathlib",
    )
    return cast(Path, library.UPath(str(location)))


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn what object storage raises in the block, which its libraries derive from no common class, into one error.

    Raises:
        DataPathError: The storage refused, or cannot be reached.
    """
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        if is_local(path):
            raise
        raise DataPathError(
            f"{path}: the storage does not answer as expected ({type(error).__name__}: {error}). Check the path, the "
            "credentials and the address of the storage."
        ) from error


def is_parquet(path: Path) -> bool:
    """Return True if a file is read as Parquet, by its suffix."""
    return path.suffix.lower() in (".parquet", ".pq")


def is_local(path: Path) -> bool:
    """Return whether a path is one of this machine's file systems, not of object storage."""
    return "://" not in str(path)  # until universal_pathlib 0.3, its paths are instances of Path


def open_input(path: Path) -> BinaryIO:
    """Open a file for reading; one of object storage in blocks of a megabyte."""
    stream = path.open("rb")
    # the files of fsspec lack readline(size)
    return stream if is_local(path) else io.BufferedReader(cast(io.RawIOBase, stream), _BLOCK)


def read_blocks(path: Path) -> Iterator[bytes]:
    """Yield the content of a file in blocks of a megabyte."""
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK):
            yield block


def input_files(inputs: Sequence[str | Path]) -> list[Path]:
    """Return the given files, and the files of the given folders: recursive, sorted, without hidden entries.

    Raises:
        DataPathError: An input does not exist, or the inputs contain no files.
    """
    files: list[Path] = []
    for entry in map(located_path, inputs):
        with storage_errors(entry):
            if not entry.exists():
                advice = "" if is_local(entry) else ", or the credentials, without which nothing is found"
                raise DataPathError(
                    f"{entry}: no such file or folder, but it is an input. Correct the path{advice}."
                )
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
    names_with_rows = {path.parent: _saved_files(path.parent) for path in files if path.name == _SAVED_STATE}

    def is_document(path: Path) -> bool:
        is_hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        # empty: the folder has a state.json of another program, so that all its files are documents
        names = names_with_rows.get(path.parent)
        return not is_hidden and path.name != _SAVED_SPLITS and (not names or path.name in names)

    return sorted(filter(is_document, files))


def _saved_files(folder: Path) -> list[str]:
    """Return the names of the files with rows that the state of a saved data set lists; empty if it is none."""
    try:
        listed = json.loads((folder / _SAVED_STATE).read_bytes())["_data_files"]
        return [entry["filename"] for entry in listed]
    except (ValueError, KeyError, TypeError):
        return []
