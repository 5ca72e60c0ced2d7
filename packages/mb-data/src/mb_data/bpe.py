"""The door to the `tokenizers` library: read a `tokenizer.json`, and train one."""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from mb_data.errors import DataPathError, TokenizerError
from mb_data.tokenizer_rules import BYTE_ENTRIES, END_OF_DOCUMENT
from mb_data.tokenizers import fingerprint_of

_SETTINGS = "tokenizer_config.json"
_EOD_NAMES = (END_OF_DOCUMENT, "<|end_of_text|>", "</s>", "<eos>")
_PARALLELISM = "TOKENIZERS_PARALLELISM"


class JsonTokenizer:
    """A tokenizer in the form of a `tokenizer.json`.

    A special token that is written out in a text is text: only `eod` ends a document.

    Args:
        content: Of the `tokenizer.json`.
        place: What it came from, for messages.
        settings: Content of a `tokenizer_config.json`, which may name the end of a document (`eos_token`); otherwise
            one of the customary names is looked for.
        include_special_tokens: Put the tokens around each text that the content asks for, such as a begin of sequence.

    Raises:
        TokenizerError: The content is no tokenizer, or nothing in it ends a document.
    """

    def __init__(
        self,
        content: bytes,
        *,
        source: Path,
        settings: bytes | None = None,
        include_special_tokens: bool = True,
    ) -> None:
        self._tokenizer = _parse(content, source)
        self._tokenizer.no_truncation()  # a file saved for a model of 512 tokens would cut every document there
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True
        self._include_special_tokens = include_special_tokens
        self.vocab_size: int = self._tokenizer.get_vocab_size()
        self.eod = _find_eod(self._tokenizer, source, settings)
        self.fingerprint = fingerprint_of(content, include_special_tokens=include_special_tokens)
        self.files: Mapping[str, bytes] = {"tokenizer.json": content} | (
            {} if settings is None else {_SETTINGS: settings}
        )

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._tokenizer.encode_special_tokens = True  # the library does not pickle it

    def token_id(self, token: str, /) -> int | None:
        """Return the id of an entry; None where there is no such entry."""
        number: int | None = self._tokenizer.token_to_id(token)
        return number

    def encode(self, text: str) -> list[int]:
        """Turn text into ids, without an end of document."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=self._include_special_tokens).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Turn ids into text, special tokens written out."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=False)
        return text


class FileTokenizer(JsonTokenizer):
    """A tokenizer read from a `tokenizer.json`.

    Args:
        path: The file, or a folder that holds it. A `tokenizer_config.json` beside it may name the end of a document.
        include_special_tokens: As for a `JsonTokenizer`.

    Raises:
        DataPathError: There is no such file.
        TokenizerError: The file is no tokenizer, or nothing in it ends a document.
    """

    def __init__(self, path: str | Path, *, include_special_tokens: bool = True) -> None:
        file = Path(path) / "tokenizer.json" if Path(path).is_dir() else Path(path)
        if not file.is_file():
            raise DataPathError(
                f"{file}: no such file; a tokenizer is read from a tokenizer.json on this machine, and nothing is "
                "downloaded. Give its path or its folder."
            )
        settings = file.with_name(_SETTINGS)
        super().__init__(
            file.read_bytes(),
            source=file,
            settings=settings.read_bytes() if settings.is_file() else None,
            include_special_tokens=include_special_tokens,
        )


def load_gpt2_bpe(vocab_file: Path, merge_file: Path) -> JsonTokenizer:
    """Read a byte-level BPE from GPT-2's two files: the ids of the entries, and the merges in their order.

    Raises:
        DataPathError: A file is not there.
        TokenizerError: The files are not those of a BPE, or have no `<|endoftext|>`.
    """
    for file, field in ((vocab_file, "vocab_file"), (merge_file, "merge_file")):
        if not file.is_file():
            raise DataPathError(
                f"{file}: no such file; GPT2BPETokenizer reads a vocab.json and a merges.txt on this machine, and "
                f"nothing is downloaded. Correct tokenizer.{field}."
            )
    try:
        model = models.BPE.from_file(str(vocab_file), str(merge_file))
    except Exception as error:  # the library raises nothing narrower
        raise TokenizerError(
            f"{vocab_file}, {merge_file}: are no BPE ({error}). Give the vocab.json and the merges.txt of one "
            "tokenizer."
        ) from error
    return JsonTokenizer(_byte_level(model).to_str().encode(), source=vocab_file)


def train_bpe(
    files: Sequence[str | Path],
    *,
    vocab_size: int,
    out: str | Path,
    progress: Callable[[str, int, int], None] | None = None,
) -> FileTokenizer:
    """Train a byte-level BPE tokenizer and write it as a `tokenizer.json`.

    The same files give the same tokenizer. Uses one thread: afterwards the process may fork, as data loaders do.

    Args:
        files: UTF-8 text.
        vocab_size: Number of entries, exactly: the 256 bytes, `<|endoftext|>` and merges.
        out: The file to write.
        progress: Called with the stage, files read and their number; the merges after the last file are a third of
            the time.

    Raises:
        TokenizerError: The size is below 257, or the text gives fewer merges than asked for.
    """
    if vocab_size < BYTE_ENTRIES:
        raise TokenizerError(
            f"vocab_size: {vocab_size} is below {BYTE_ENTRIES}; the bytes and the end of a document are always there. "
            f"Use {BYTE_ENTRIES} or more."
        )
    tokenizer = _byte_level(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_DOCUMENT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    with _single_threaded():
        tokenizer.train_from_iterator(_read_texts(files, progress), trainer, length=len(files))
    if tokenizer.get_vocab_size() != vocab_size:
        raise TokenizerError(
            f"vocab_size: asked for {vocab_size} entries, but {len(files)} file(s) give {tokenizer.get_vocab_size()}; "
            "no pair of tokens is left to merge. Give more text, or set vocab_size (dataset.vocab_size in a run) to "
            f"{tokenizer.get_vocab_size()} or less."
        )
    tokenizer.save(str(out))
    return FileTokenizer(out)


def _byte_level(model: Any) -> Any:
    """Return a tokenizer whose texts are bytes, divided into words as GPT-2 does."""
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _read_texts(
    files: Sequence[str | Path], progress: Callable[[str, int, int], None] | None
) -> Iterator[str]:
    for number, file in enumerate(files, start=1):
        yield Path(file).read_bytes().decode()
        if progress is not None:
            progress("train tokenizer", number, len(files))


def _parse(content: bytes, file: Path) -> Any:
    try:
        return Tokenizer.from_buffer(content)
    except Exception as error:  # the library raises nothing narrower
        raise TokenizerError(f"{file}: is no tokenizer ({error}). Give a tokenizer.json.") from error


def _find_eod(tokenizer: Any, source: Path, settings: bytes | None) -> int:
    """Return the id that ends a document: the one that the settings name, or a customary one."""
    named = None if settings is None else _eos_in_settings(settings, source)
    names = (named, *_EOD_NAMES)
    for name in names:
        number: int | None = tokenizer.token_to_id(name) if name else None
        if number is not None:
            return number
    raise TokenizerError(
        f"{source}: has no token that ends a document (looked for {', '.join(filter(None, names))}); documents could "
        "not be told apart. Name it as eos_token in a tokenizer_config.json beside the file."
    )


def _eos_in_settings(settings: bytes, source: Path) -> str | None:
    try:
        named = json.loads(settings).get("eos_token")
        name = named["content"] if isinstance(named, dict) else named
        if not isinstance(name, str | None):
            raise TypeError(f"eos_token is {name!r}, which is no text")
        return name
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        raise TokenizerError(
            f"{source.with_name(_SETTINGS)}: is no JSON object with an eos_token ({error}); it may name the end of a "
            "document. Correct it."
        ) from error


@contextmanager
def _single_threaded() -> Iterator[None]:
    """Keep the library from starting threads, after which each fork of the process prints a warning.

    The environment is the library's only switch; a value that is set already is left alone.
    """
    if _PARALLELISM in os.environ:
        yield
        return
    os.environ[_PARALLELISM] = "false"
    try:
        yield
    finally:
        del os.environ[_PARALLELISM]
