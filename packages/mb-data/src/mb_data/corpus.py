"""A folder of text, prepared once: split by file, everything tokenized, by a tokenizer of its own or by a given one.

A prepared corpus is a folder named by a fingerprint of the texts and the settings, as `mb_data.cache_dir` makes them.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from mb_data.blend import SPLITS
from mb_data.cache_dir import load_or_build, resolve_cache_dir
from mb_data.config import TextCorpusConfig
from mb_data.errors import DataPathError, IndexedFormatError
from mb_data.indexed import IndexedWriter, token_dtype, verify_prefix
from mb_data.sources import SourceFile, read_sources, split_files
from mb_data.tokenizers import Tokenizer, is_read_from

FORMAT_VERSION = 1
"""Part of the fingerprint: a change of what is written makes new corpora."""

_TOKENIZER, _RECORD = "tokenizer.json", "corpus.json"

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizedCorpus:
    """Where the tokens of a text corpus are. A split without files is None."""

    train: str
    """Prefix of the training data's `.bin`/`.idx` pair."""
    valid: str | None
    test: str | None
    reused: bool
    """It was there already."""
    tokens: Mapping[str, int]
    """Tokens of train, valid and test."""
    files: Mapping[str, int]
    """Files of train, valid and test, and `skipped`: those that are not UTF-8 text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedCorpus(TokenizedCorpus):
    """A text corpus with a tokenizer of its own."""

    tokenizer: Path
    """The `tokenizer.json`."""


def prepare_corpus(config: TextCorpusConfig, *, progress: Progress | None = None) -> PreparedCorpus:
    """Make the corpus that the configuration describes, or find it made already.

    Its tokenizer is trained on the training part. Reads every source file to know whether anything has changed (about
    0.1 s for 10 MB). Several processes may call it at once. Not collective.

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

    def build(folder: Path) -> None:
        bpe = import_module("mb_data.bpe")  # not needed to find a corpus that is there already
        tokenizer = bpe.train_bpe(
            [file.path for file in splits["train"]],
            vocab_size=config.vocab_size,
            out=folder / _TOKENIZER,
            progress=progress,
        )
        _tokenize(splits, tokenizer, folder=folder, skipped=skipped, progress=progress)

    return load_or_build(_folder(sources, config), load=_load_with_tokenizer, build=build)


def tokenize_corpus(
    config: TextCorpusConfig, tokenizer: Tokenizer, *, progress: Progress | None = None
) -> TokenizedCorpus:
    """Make the corpus that the configuration describes with this tokenizer, or find it made already.

    `config.vocab_size` is not read, and no tokenizer is trained. The corpus's own tokenizer finds what `prepare_corpus`
    has made. Otherwise as that.

    Args:
        config: Sources and settings; not changed.
        tokenizer: Turns text into ids.
        progress: Called with the stage, and how much of it is done.

    Raises:
        DataPathError, CorpusError: As `prepare_corpus`.
    """
    sources, skipped = read_sources(config)
    own = _load_with_tokenizer(_folder(sources, config), reused=True)
    if own is not None and is_read_from(tokenizer, own.tokenizer):
        return own
    splits = split_files(sources, config)

    def build(folder: Path) -> None:
        _tokenize(splits, tokenizer, folder=folder, skipped=skipped, progress=progress)

    return load_or_build(_folder(sources, config, tokenizer=tokenizer), load=_load, build=build)


def fingerprint(
    files: list[SourceFile], config: TextCorpusConfig, *, tokenizer: Tokenizer | None = None
) -> str:
    """Hash everything that a corpus depends on: names, contents, tokenizer, settings and the format's version."""
    settings = [
        FORMAT_VERSION,
        config.vocab_size if tokenizer is None else tokenizer.fingerprint,
        config.validation_fraction,
        config.test_fraction,
        config.split_seed,
    ]
    described = json.dumps([settings, [(file.name, file.digest) for file in files]])
    return hashlib.sha256(described.encode()).hexdigest()[:24]


def _folder(files: list[SourceFile], config: TextCorpusConfig, *, tokenizer: Tokenizer | None = None) -> Path:
    return resolve_cache_dir(config.cache_dir) / "corpora" / fingerprint(files, config, tokenizer=tokenizer)


def _tokenize(
    splits: Mapping[str, list[SourceFile]],
    tokenizer: Tokenizer,
    *,
    folder: Path,
    skipped: int,
    progress: Progress | None,
) -> None:
    done, total = 0, sum(map(len, splits.values()))
    tokens = dict.fromkeys(SPLITS, 0)
    for split, files in splits.items():
        if not files:
            continue
        with IndexedWriter(folder / split, dtype=token_dtype(tokenizer.vocab_size)) as writer:
            for file in files:
                writer.add_document([*tokenizer.encode(file.path.read_bytes().decode()), tokenizer.eod])
                done += 1
                if progress is not None:
                    progress("tokenize", done, total)
        tokens[split] = writer.summary.tokens
    files_of = {split: len(files) for split, files in splits.items()} | {"skipped": skipped}
    (folder / _RECORD).write_text(json.dumps({"tokens": tokens, "files": files_of}, indent=1))


def _load(folder: Path, *, reused: bool) -> TokenizedCorpus | None:
    """Return the tokens in a folder; None when there are none, or some that were damaged."""
    try:
        record: dict[str, dict[str, Any]] = json.loads((folder / _RECORD).read_text())
        prefixes = {split: str(folder / split) for split in SPLITS if record["files"][split]}
        found = {split: verify_prefix(prefix).tokens for split, prefix in prefixes.items()}
    except (FileNotFoundError, DataPathError, IndexedFormatError, json.JSONDecodeError, KeyError):
        return None
    if any(found[split] != record["tokens"][split] for split in found):
        return None
    return TokenizedCorpus(
        train=prefixes["train"],
        valid=prefixes.get("valid"),
        test=prefixes.get("test"),
        reused=reused,
        tokens=record["tokens"],
        files=record["files"],
    )


def _load_with_tokenizer(folder: Path, *, reused: bool) -> PreparedCorpus | None:
    """Return the corpus in a folder; None when there is none, or one that was damaged."""
    found, tokenizer = _load(folder, reused=reused), folder / _TOKENIZER
    return PreparedCorpus(**asdict(found), tokenizer=tokenizer) if found and tokenizer.is_file() else None
