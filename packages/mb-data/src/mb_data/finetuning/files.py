"""Paths of fine-tuning data."""

from collections.abc import Iterable
from pathlib import Path

from mb_data.errors import BadDocumentError, DataPathError
from mb_data.finetuning.config import FinetuningDatasetConfig
from mb_data.text.compressed import strip_compression
from mb_data.text.document_rows import is_table
from mb_data.text.documents import is_json

_PACK_SUFFIXES = (".npy", ".parquet", ".pq")
_NAMES = {"training": ("training", "train"), "validation": ("validation", "valid"), "test": ("test",)}
"""Split -> names of its file or folder, without suffix."""


def sample_files(config: FinetuningDatasetConfig, split: str) -> list[Path]:
    """Return the paths of the files or folders of a split (training, validation or test), one for each root.

    Raises:
        DataPathError: In a root, no file exists, or there are several.
    """
    return [_sample_file(Path(root), split) for root in config.roots[0]]


def _sample_file(root: Path, split: str) -> Path:
    """Return the one file or folder of a split.

    Raises:
        DataPathError: There is none, or more than one.
    """
    existing = [path for path in _candidates(root, split) if path.exists()]
    if not existing:
        instead = {"validation": "set dataset.do_validation=false", "test": "set dataset.do_test=false"}
        raise DataPathError(
            f"dataset.dataset_root: {root / f'{split}.jsonl'} does not exist; the {split} samples are read from it, or "
            f"from .json, .csv, .parquet or .arrow. Correct the path"
            + (f", or {instead[split]}." if split in instead else ".")
        )
    if len(existing) > 1:
        raise DataPathError(
            f"dataset.dataset_root: {' and '.join(map(str, existing))} exist; the {split} samples are read from one "
            "file or folder. Remove the others."
        )
    return existing[0]


def pack_files(config: FinetuningDatasetConfig, split: str) -> list[Path]:
    """Return the files of existing packs of a split; empty if the section names none.

    Raises:
        DataPathError: The path does not exist, or contains no files of packs.
    """
    specs = config.packed_sequence_specs
    names = {"training": "packed_train_data_path", "validation": "packed_val_data_path"}
    path = getattr(specs, names[split]) if specs is not None and split in names else None
    if path is None:
        return []
    location = Path(path)
    if location.is_dir():
        files = sorted(file for file in location.iterdir() if file.suffix.lower() in _PACK_SUFFIXES)
    else:
        files = [location] if location.is_file() else sorted(location.parent.glob(location.name))
    if not files or any(file.suffix.lower() not in _PACK_SUFFIXES for file in files):
        raise DataPathError(
            f"dataset.packed_sequence_specs.{names[split]}: {path} is not a file of packs "
            f"({', '.join(_PACK_SUFFIXES)}), nor a folder or pattern of such files. Correct "
            "the path, or leave it unset to pack the samples themselves."
        )
    return files


def require_rows(files: Iterable[Path]) -> None:
    """Check that files have the suffix of JSON lines or of a table.

    Raises:
        BadDocumentError: A file has another suffix.
    """
    for file in files:
        if not (is_json(file) or is_table(file)):
            raise BadDocumentError(
                f"{file}: is neither JSON lines nor a table, by its suffix; a sample is a JSON object or a row. "
                "Convert it to .jsonl, .csv or .parquet, or remove it."
            )


def _candidates(root: Path, split: str) -> list[Path]:
    """Return the paths in a folder that have the name of a split, with any suffix that is read, or are folders."""
    paths = sorted(root.iterdir()) if root.is_dir() else []
    return [
        path
        for path in paths
        if strip_compression(path).stem in _NAMES[split]
        and (path.suffix == "" if path.is_dir() else is_json(path) or is_table(path))
    ]
