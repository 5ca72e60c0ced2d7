"""Record of the sample indices of a blend, with which a later start opens them on demand. Standard library only.

The record is a JSON file in the folder of the sample indices. It has the number of samples of each dataset, the names
of its index files, and their sizes and modification times. If one of the files has changed, the record is not used and
Megatron reads all indices.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from mb_schema.files import write_atomically

_FORMAT = 1
PART_FILES = ("description.txt", "document_index.npy", "sample_index.npy", "shuffle_index.npy")
"""Ends of the names of the index files of one dataset, as Megatron names them."""
BLEND_FILES = ("description.txt", "dataset_index.npy", "dataset_sample_index.npy")
"""Ends of the names of the index files of a blend."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartRecord:
    """Dataset of one `.bin`/`.idx` pair."""

    prefix: str
    """Path of the pair without `.bin` and `.idx`."""
    num_samples: int | None
    """Samples requested from it; None: one epoch."""
    name: str
    """Beginning of the names of its index files."""

    @property
    def files(self) -> list[str]:
        """Names of its index files."""
        return [f"{self.name}-{suffix}" for suffix in PART_FILES]


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRecord:
    """Datasets of one split: a blend if `name` is set, otherwise a single one."""

    parts: tuple[PartRecord, ...]
    name: str | None = None
    """Beginning of the names of the index files of the blend."""
    weights: tuple[float, ...] = ()
    """Weight of each part in the blend; empty without a blend."""
    size: int | None = None
    """Samples of the blend; None: one epoch."""

    @property
    def files(self) -> list[str]:
        """Names of the index files of the split and of its parts."""
        blend_files = [] if self.name is None else [f"{self.name}-{suffix}" for suffix in BLEND_FILES]
        return blend_files + [name for part in self.parts for name in part.files]


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexRecord:
    """Sample indices of the splits of a run, in one folder."""

    splits: tuple[SplitRecord | None, ...]
    """Training, validation and test; None: the split has no samples."""
    files: Mapping[str, tuple[int, int]]
    """Size in bytes and modification time in nanoseconds of each index file."""

    @property
    def parts(self) -> int:
        """Number of datasets of all splits."""
        return sum(len(split.parts) for split in self.splits if split is not None)

    @property
    def digest(self) -> str:
        """Hash of the record, which is equal on ranks that found the same record."""
        return hashlib.sha256(_encode(self).encode()).hexdigest()


def write_record(path: Path, splits: tuple[SplitRecord | None, ...]) -> None:
    """Write the record of the sample indices in the folder of `path`, if they are complete and the folder is writable.

    Args:
        path: The file of the record.
        splits: Datasets of each split.
    """
    states = file_states(path.parent)
    names = [name for split in splits if split is not None for name in split.files]
    if any(name not in states for name in names):
        return
    record = IndexRecord(splits=splits, files={name: states[name] for name in names})
    with suppress(OSError):  # a read-only folder or a full disk: the next start reads all indices again
        write_atomically(path, _encode(record))


def read_record(path: Path, *, compare: bool) -> IndexRecord | None:
    """Return a record; None if there is none, or it is damaged, or a file has changed since.

    Args:
        path: The file of the record, in the folder of the indices.
        compare: Whether to compare the sizes and times of the index files with the record.
    """
    try:
        record = _decode(json.loads(path.read_bytes()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    if compare:
        states = file_states(path.parent)
        if any(states.get(name) != state for name, state in record.files.items()):
            return None
    return record


def file_states(folder: Path) -> dict[str, tuple[int, int]]:
    """Return size and modification time in nanoseconds of each file of a folder, by name.

    Another process may write to the folder: a file that is renamed or removed meanwhile is left out.
    """
    states = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                status = entry.stat()
            except FileNotFoundError:
                continue
            states[entry.name] = (status.st_size, status.st_mtime_ns)
    return states


def _encode(record: IndexRecord) -> str:
    splits = [None if split is None else _split_to_json(split) for split in record.splits]
    return json.dumps({"format": _FORMAT, "splits": splits, "files": dict(record.files)})


def _split_to_json(split: SplitRecord) -> dict[str, Any]:
    parts = [[part.prefix, part.num_samples, part.name] for part in split.parts]
    values = {field.name: getattr(split, field.name) for field in fields(split) if field.name != "parts"}
    return values | {"parts": parts}


def _decode(values: Any) -> IndexRecord:
    """Return the record of a JSON value. Any of the errors that `read_record` handles may be raised."""
    if values["format"] != _FORMAT:
        raise ValueError(f"format {values['format']}")
    splits = tuple(None if split is None else _split_from_json(**split) for split in values["splits"])
    files = {name: (size, modified) for name, (size, modified) in values["files"].items()}
    if any(name not in files for split in splits if split is not None for name in split.files):
        raise ValueError("a file without size")
    return IndexRecord(splits=splits, files=files)


def _split_from_json(parts: list[Any], weights: list[float], **values: Any) -> SplitRecord:
    part_records = tuple(
        PartRecord(prefix=prefix, num_samples=size, name=name) for prefix, size, name in parts
    )
    return SplitRecord(parts=part_records, weights=tuple(weights), **values)
