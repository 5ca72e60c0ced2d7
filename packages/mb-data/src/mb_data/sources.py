"""Source files of a text corpus, and their assignment to splits."""

import hashlib
import os
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from mb_data.blend import SPLITS
from mb_data.config import TextCorpusConfig
from mb_data.documents import visible_files
from mb_data.errors import CorpusError, DataPathError

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
    """Text file of a corpus."""

    path: Path
    name: str
    """Path relative to its source, identical on every machine."""
    digest: str
    """Hash of the content."""


def read_sources(config: TextCorpusConfig) -> tuple[list[SourceFile], int]:
    """Return the hashed source files in a fixed order, and the number of files that are not UTF-8 text.

    Raises:
        DataPathError: A source does not exist.
        CorpusError: No file contains text.
    """
    found = [_read_source(path, name) for path, name in _source_paths(config)]
    files = [file for file in found if file is not None]
    if not files:
        raise CorpusError(
            f"dataset.sources: {config.sources} contain no text ({len(found)} files are empty or not UTF-8). "
            "Set files or folders of UTF-8 text."
        )
    return files, len(found) - len(files)


def verify_sources(config: TextCorpusConfig) -> None:
    """Check that there is a file for every split, reading only as many files as necessary.

    Raises:
        DataPathError: A source does not exist.
        CorpusError: No file contains text, or there are fewer files than splits.
    """
    needed = 1 + len(_held_out_splits(config))
    read = (_read_source(path, name) for path, name in _source_paths(config))
    if len(list(islice(filter(None, read), needed))) < needed:
        files, _ = read_sources(config)
        split_files(files, config)


def split_files(files: list[SourceFile], config: TextCorpusConfig) -> dict[str, list[SourceFile]]:
    """Assign each file to train, valid or test, by a hash of its name and the seed only.

    A new file therefore does not change the split of any other file. A split without files whose fraction is not 0
    takes the first file of the largest split.

    Raises:
        CorpusError: There are fewer files than splits.
    """
    wanted = _held_out_splits(config)
    if len(files) <= len(wanted):
        raise CorpusError(
            f"dataset.sources: {len(files)} file(s) are too few for train, {' and '.join(wanted)}; a file is never "
            "divided. Add files, or set dataset.validation_fraction=0, dataset.test_fraction=0 or both."
        )
    splits: dict[str, list[SourceFile]] = {name: [] for name in SPLITS}
    for file in files:
        splits[_split_of(file.name, config)].append(file)
    for name in ("train", *wanted):
        if not splits[name]:
            largest = max(splits.values(), key=len)
            splits[name].append(largest.pop(0))
    return splits


def _held_out_splits(config: TextCorpusConfig) -> list[str]:
    """Return the splits other than train whose fraction is above 0."""
    fractions = {"valid": config.validation_fraction, "test": config.test_fraction}
    return [name for name, fraction in fractions.items() if fraction > 0]


def _source_paths(config: TextCorpusConfig) -> Iterator[tuple[Path, str]]:
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


def _read_source(path: Path, name: str) -> SourceFile | None:
    content = path.read_bytes()
    try:
        content.decode()
    except UnicodeDecodeError:
        return None
    if not content or b"\0" in content:
        return None
    return SourceFile(path=path, name=name, digest=hashlib.sha256(content).hexdigest())


def _split_of(name: str, config: TextCorpusConfig) -> str:
    digest = hashlib.sha256(f"{config.split_seed}:{name}".encode()).digest()
    position = int.from_bytes(digest[:8], "big") / 2**64
    if position < config.test_fraction:
        return "test"
    return "valid" if position < config.test_fraction + config.validation_fraction else "train"
