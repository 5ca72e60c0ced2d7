"""Preparation of a text corpus: split by document, then tokenized, with a trained or a given tokenizer.

A prepared corpus is a folder of the cache that is named by a fingerprint of the texts and the settings; see
`mb_data.build_cache`.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from mb_data.build_cache import load_or_build, resolve_cache_dir
from mb_data.config import TextCorpusConfig
from mb_data.errors import DataPathError, IndexedFormatError
from mb_data.megatron.blend import SPLITS
from mb_data.progress import Progress
from mb_data.text.indexed import IndexedWriter, token_dtype, verify_prefix
from mb_data.text.sources import DocumentSplits, SourceFile, read_documents, read_sources, split_documents
from mb_data.tokenizers.base import Tokenizer, end_document, is_read_from

FORMAT_VERSION = 1
"""Version of the files on disk. Part of the fingerprint, so that a change of the format creates new corpora."""

_TOKENIZER, _RECORD = "tokenizer.json", "corpus.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizedCorpus:
    """Prefixes and sizes of a tokenized text corpus. A split without files is None."""

    train: str
    """Prefix of the training data's `.bin`/`.idx` pair."""
    valid: str | None
    test: str | None
    reused: bool
    """True if the corpus was found in the cache."""
    tokens: Mapping[str, int]
    """Number of tokens of train, valid and test."""
    files: Mapping[str, int]
    """Number of documents of train, valid and test, and `skipped`: files that are not UTF-8 text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedCorpus(TokenizedCorpus):
    """Text corpus with a tokenizer trained on its training split."""

    tokenizer: Path
    """Path of the `tokenizer.json`."""


def prepare_corpus(config: TextCorpusConfig, *, progress: Progress | None = None) -> PreparedCorpus:
    """Prepare the corpus that the configuration describes, or load it from the cache.

    The tokenizer is trained on the training split. Every call reads all source files to detect changes (about 0.1 s for
    10 MB). Concurrent calls from several processes are safe. Not collective.

    Args:
        config: Sources and settings; not modified.
        progress: Called with the stage, the completed units and their total.

    Raises:
        DataPathError: A source does not exist.
        CorpusError: The sources contain no text, or too few documents for the splits with a fraction above 0.
        BadDocumentError: A line or row is not a document.
        TokenizerError: There is too little text for the vocabulary.
        ModuleNotFoundError: The `tokenizers` library is not installed.
    """
    sources, skipped = read_sources(config)

    def build(folder: Path) -> None:
        bpe = import_module("mb_data.tokenizers.bpe")  # a cached corpus loads without the library
        splits = split_documents(sources, config)
        tokenizer = bpe.train_bpe_on_texts(
            _training_texts(sources, splits, progress), vocab_size=config.vocab_size, out=folder / _TOKENIZER
        )
        _tokenize(sources, splits, tokenizer, folder=folder, skipped=skipped, progress=progress)

    return load_or_build(_folder(sources, config), load=_load_with_tokenizer, build=build)


def tokenize_corpus(
    config: TextCorpusConfig, tokenizer: Tokenizer, *, progress: Progress | None = None
) -> TokenizedCorpus:
    """Tokenize the corpus that the configuration describes with a given tokenizer, or load it from the cache.

    `config.vocab_size` is ignored, and no tokenizer is trained. With the tokenizer of a corpus that `prepare_corpus`
    created, that corpus is returned. Otherwise behaves as `prepare_corpus`.

    Args:
        config: Sources and settings; not modified.
        tokenizer: Converts text to ids.
        progress: Called with the stage, the completed units and their total.

    Raises:
        DataPathError, CorpusError: See `prepare_corpus`.
    """
    sources, skipped = read_sources(config)
    corpus = _load_with_tokenizer(_folder(sources, config), reused=True)
    if corpus is not None and is_read_from(tokenizer, corpus.tokenizer):
        return corpus

    def build(folder: Path) -> None:
        splits = split_documents(sources, config)
        _tokenize(sources, splits, tokenizer, folder=folder, skipped=skipped, progress=progress)

    return load_or_build(_folder(sources, config, tokenizer=tokenizer), load=_load, build=build)


def fingerprint(
    files: list[SourceFile], config: TextCorpusConfig, *, tokenizer: Tokenizer | None = None
) -> str:
    """Return a hash of everything that a corpus depends on: file names, contents, tokenizer, settings and format."""
    settings: list[Any] = [
        FORMAT_VERSION,
        config.vocab_size if tokenizer is None else tokenizer.fingerprint,
        config.validation_fraction,
        config.test_fraction,
        config.split_seed,
    ]
    if any(file.has_rows for file in files):
        settings += [config.json_key, [file.name for file in files if file.has_rows]]
    described = json.dumps([settings, [(file.name, file.digest) for file in files]])
    return hashlib.sha256(described.encode()).hexdigest()[:24]


def _folder(files: list[SourceFile], config: TextCorpusConfig, *, tokenizer: Tokenizer | None = None) -> Path:
    return resolve_cache_dir(config.cache_dir) / "corpora" / fingerprint(files, config, tokenizer=tokenizer)


def _training_texts(
    files: list[SourceFile], splits: DocumentSplits, progress: Progress | None
) -> Iterator[str]:
    for number, file in enumerate(files, start=1):
        for document in read_documents([file], splits.config):
            if splits.split(document.name) == "train":
                yield document.text
        if progress is not None:
            progress("train tokenizer", number, len(files))


def _tokenize(
    files: list[SourceFile],
    splits: DocumentSplits,
    tokenizer: Tokenizer,
    *,
    folder: Path,
    skipped: int,
    progress: Progress | None,
) -> None:
    """Write a pair for each split that has documents, and the record of their numbers, which declares them complete."""
    documents = dict.fromkeys(SPLITS, 0)
    writers: dict[str, IndexedWriter] = {}
    with ExitStack() as stack:
        for num_done, file in enumerate(files, start=1):
            for document in read_documents([file], splits.config):
                split = splits.split(document.name)
                if split not in writers:
                    dtype = token_dtype(tokenizer.vocab_size)
                    writers[split] = stack.enter_context(IndexedWriter(folder / split, dtype=dtype))
                ids = end_document(tokenizer.encode(document.text), tokenizer.eod)
                writers[split].add_document(ids)
                documents[split] += 1
            if progress is not None:
                progress("tokenize", num_done, len(files))
    tokens = {split: writers[split].summary.tokens if split in writers else 0 for split in SPLITS}
    record = {"tokens": tokens, "files": documents | {"skipped": skipped}}
    (folder / _RECORD).write_text(json.dumps(record, indent=1), encoding="utf-8")


def _load(folder: Path, *, reused: bool) -> TokenizedCorpus | None:
    """Return the tokenized corpus in a folder; None if it is missing or damaged."""
    try:
        record: dict[str, dict[str, Any]] = json.loads((folder / _RECORD).read_text(encoding="utf-8"))
        prefixes = {split: str(folder / split) for split in SPLITS if record["files"][split]}
        if any(verify_prefix(prefix).tokens != record["tokens"][split] for split, prefix in prefixes.items()):
            return None
        return TokenizedCorpus(
            train=prefixes["train"],
            valid=prefixes.get("valid"),
            test=prefixes.get("test"),
            reused=reused,
            tokens=record["tokens"],
            files=record["files"],
        )
    except (FileNotFoundError, DataPathError, IndexedFormatError, ValueError, KeyError, TypeError):
        return None


def _load_with_tokenizer(folder: Path, *, reused: bool) -> PreparedCorpus | None:
    """Return the corpus with its tokenizer in a folder; None if it is missing or damaged."""
    corpus, tokenizer = _load(folder, reused=reused), folder / _TOKENIZER
    return PreparedCorpus(**asdict(corpus), tokenizer=tokenizer) if corpus and tokenizer.is_file() else None
