"""A folder of text, prepared once: split by file, a tokenizer trained on the training part, everything tokenized.

A prepared corpus is a folder named by a fingerprint of the texts and the settings. It is made under another name and
renamed when it is whole, so it is there completely or not at all; of two processes that make the same one, the later
finds the earlier one's and throws its own away. A killed build leaves a `.building-*` folder that nobody reads.
"""

import hashlib
import json
import os
import shutil
import sysconfig
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from mb_data.blend import SPLITS
from mb_data.config import TextCorpusConfig
from mb_data.documents import visible_files
from mb_data.errors import CorpusError, DataPathError, IndexedFormatError
from mb_data.indexed import IndexedWriter, token_dtype, verify_prefix

FORMAT_VERSION = 1
"""Part of the fingerprint: a change of what is written makes new corpora."""

_NOT_LIBRARY = {
    "test",
    "tests",
    "idle_test",
    "idlelib",
    "lib2to3",
    "turtledemo",
    "site-packages",
    "dist-packages",
}
"""Folders of a Python installation that are tests, or not the standard library."""

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedCorpus:
    """Where a prepared corpus is. A split without files is None."""

    train: str
    """Prefix of the training data's `.bin`/`.idx` pair."""
    valid: str | None
    test: str | None
    tokenizer: Path
    """The `tokenizer.json`."""
    reused: bool
    """It was there already."""
    tokens: Mapping[str, int]
    """Tokens of train, valid and test."""
    files: Mapping[str, int]
    """Files of train, valid and test, and `skipped`: those that are not UTF-8 text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """One file of text."""

    path: Path
    name: str
    """Path relative to its source, the same on every machine."""
    digest: str
    """Hash of its content."""


def prepare_corpus(config: TextCorpusConfig, *, progress: Progress | None = None) -> PreparedCorpus:
    """Make the corpus that the configuration describes, or find it made already.

    Reads every source file to know whether anything has changed (about 0.1 s for 10 MB). Several processes may call it
    at once. Not collective.

    Args:
        config: Sources and settings; not changed.
        progress: Called with the stage, and how much of it is done.

    Raises:
        DataPathError: A source does not exist.
        CorpusError: There is no text, or no file for a split that has a fraction.
        TokenizerError: There is too little text for the vocabulary.
        ModuleNotFoundError: The `tokenizers` library is not installed.
    """
    sources, skipped = read_sources(config)
    splits = split_files(sources, config)
    folder = cache_folder(config.cache_dir) / "corpora" / fingerprint(sources, config)
    if (found := _find(folder, reused=True)) is not None:
        return found
    folder.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".building-{folder.name}-"))
    try:
        _build(building, splits, vocab_size=config.vocab_size, skipped=skipped, progress=progress)
        reused = not _put(building, folder)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    result = _find(folder, reused=reused)
    if result is None:
        raise CorpusError(f"{folder}: was changed while it was being made. Try again.")
    return result


def cache_folder(cache_dir: str | None, *, environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder for prepared corpora: the given one, `$MB_CACHE_DIR`, or `~/.cache/mb-trainer`."""
    return Path(cache_dir or environment.get("MB_CACHE_DIR") or "~/.cache/mb-trainer").expanduser()


def read_sources(config: TextCorpusConfig) -> tuple[list[SourceFile], int]:
    """Find and hash the source files, in a fixed order; return also how many are no UTF-8 text.

    Raises:
        DataPathError: A source does not exist.
        CorpusError: No file has any text.
    """
    found = [_read(path, name) for path, name in _source_paths(config)]
    files = [file for file in found if file is not None]
    if not files:
        raise CorpusError(
            f"dataset.sources: {config.sources} have no text ({len(found)} files are empty or not UTF-8). "
            "Name files or folders of UTF-8 text."
        )
    return files, len(found) - len(files)


def split_files(files: list[SourceFile], config: TextCorpusConfig) -> dict[str, list[SourceFile]]:
    """Give each file to train, valid or test, by a hash of its name and the seed alone.

    A split that would get no file, though its fraction is not 0, takes the first one of the largest split.

    Raises:
        CorpusError: There are fewer files than splits.
    """
    fractions = {"valid": config.validation_fraction, "test": config.test_fraction}
    wanted = [name for name, fraction in fractions.items() if fraction > 0]
    if len(files) <= len(wanted):
        raise CorpusError(
            f"dataset.sources: {len(files)} file(s) cannot give train, {' and '.join(wanted)} one each; a file is "
            "never divided. Give more files, or set dataset.validation_fraction=0, dataset.test_fraction=0 or both."
        )
    splits: dict[str, list[SourceFile]] = {name: [] for name in SPLITS}
    for file in files:
        splits[_split_of(file.name, config)].append(file)
    for name in ("train", *wanted):
        if not splits[name]:
            largest = max(splits.values(), key=len)
            splits[name].append(largest.pop(0))
    return splits


def fingerprint(files: list[SourceFile], config: TextCorpusConfig) -> str:
    """Hash everything that a prepared corpus depends on: names, contents, settings and the format's version."""
    settings = [
        FORMAT_VERSION,
        config.vocab_size,
        config.validation_fraction,
        config.test_fraction,
        config.split_seed,
    ]
    described = json.dumps([settings, [(file.name, file.digest) for file in files]])
    return hashlib.sha256(described.encode()).hexdigest()[:24]


def _source_paths(config: TextCorpusConfig) -> Iterator[tuple[Path, str]]:
    if config.sources is None:
        library = Path(sysconfig.get_path("stdlib"))
        for path in sorted(library.rglob("*.py")):
            parts = path.relative_to(library).parts
            if not _NOT_LIBRARY.intersection(parts):
                yield path, "/".join(parts)
        return
    for source in map(Path, config.sources):
        if not source.exists():
            raise DataPathError(f"dataset.sources: {source} does not exist. Correct the path.")
        for path in visible_files(source) if source.is_dir() else [source]:
            yield path, path.relative_to(source.parent).as_posix()


def _read(path: Path, name: str) -> SourceFile | None:
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


def _build(
    folder: Path,
    splits: Mapping[str, list[SourceFile]],
    *,
    vocab_size: int,
    skipped: int,
    progress: Progress | None,
) -> None:
    bpe = import_module("mb_data.bpe")  # not needed to find a corpus that is there already
    train_files = [file.path for file in splits["train"]]
    tokenizer = bpe.train_bpe(
        train_files, vocab_size=vocab_size, out=folder / "tokenizer.json", progress=progress
    )
    done, total = 0, sum(map(len, splits.values()))
    tokens = dict.fromkeys(SPLITS, 0)
    for split, files in splits.items():
        if not files:
            continue
        with IndexedWriter(folder / split, dtype=token_dtype(vocab_size)) as writer:
            for file in files:
                writer.add_document([*tokenizer.encode(file.path.read_bytes().decode()), tokenizer.eod])
                done += 1
                if progress is not None:
                    progress("tokenize", done, total)
        tokens[split] = writer.summary.tokens
    files_of = {split: len(files) for split, files in splits.items()} | {"skipped": skipped}
    (folder / "corpus.json").write_text(json.dumps({"tokens": tokens, "files": files_of}, indent=1))


def _put(building: Path, folder: Path) -> bool:
    """Rename a finished build to its place; False when another process has put a whole one there."""
    if folder.exists():
        if _find(folder, reused=True) is not None:
            return False
        shutil.rmtree(folder, ignore_errors=True)
    try:
        building.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise
        return False
    return True


def _find(folder: Path, *, reused: bool) -> PreparedCorpus | None:
    """Return the corpus in a folder; None when there is none, or one that was damaged."""
    try:
        record: dict[str, dict[str, Any]] = json.loads((folder / "corpus.json").read_text())
        prefixes = {split: str(folder / split) for split in SPLITS if record["files"][split]}
        found = {split: verify_prefix(prefix).tokens for split, prefix in prefixes.items()}
    except (FileNotFoundError, DataPathError, IndexedFormatError, json.JSONDecodeError, KeyError):
        return None
    tokenizer = folder / "tokenizer.json"
    if not tokenizer.is_file() or any(found[split] != record["tokens"][split] for split in found):
        return None
    return PreparedCorpus(
        train=prefixes["train"],
        valid=prefixes.get("valid"),
        test=prefixes.get("test"),
        tokenizer=tokenizer,
        reused=reused,
        tokens=record["tokens"],
        files=record["files"],
    )
