"""Adapter for the `tokenizers` library: reads and trains `tokenizer.json` files."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from mb_data.chat.template import TEMPLATE_FILE, ChatTemplates, parse_chat_templates
from mb_data.errors import TokenizerError
from mb_data.progress import Progress
from mb_data.tokenizers.base import fingerprint_of, require_local_file
from mb_data.tokenizers.rules import BYTE_ENTRIES, END_OF_DOCUMENT

_SETTINGS = "tokenizer_config.json"
_EOD_NAMES = (END_OF_DOCUMENT, "<|end_of_text|>", "</s>", "<eos>")
_PARALLELISM = "TOKENIZERS_PARALLELISM"


class JsonTokenizer:
    """Tokenizer defined by the content of a `tokenizer.json`.

    Special tokens that occur in a text are encoded as ordinary text. Only the id `eod` ends a document.

    Args:
        content: Content of the `tokenizer.json`.
        source: Path that the content was read from, for messages.
        settings: Content of a `tokenizer_config.json`, whose `eos_token` is the end-of-document token. Without one in
            the vocabulary, the first known end-of-document name that it contains is used.
        chat_template: Content of a `chat_template.jinja`, which precedes the template in the settings.
        include_special_tokens: Add the tokens that the file's post-processor places around each text, such as a
            beginning-of-sequence token.

    Raises:
        TokenizerError: The content is not a tokenizer, or it has no end-of-document token.
    """

    def __init__(
        self,
        content: bytes,
        *,
        source: Path,
        settings: bytes | None = None,
        chat_template: bytes | None = None,
        include_special_tokens: bool = True,
    ) -> None:
        self._source = source
        self._tokenizer = _parse(content, source)
        self._tokenizer.no_truncation()  # a file saved for a model of 512 tokens would truncate every document
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True
        self._include_special_tokens = include_special_tokens
        self.vocab_size: int = self._tokenizer.get_vocab_size()
        eos = None if settings is None else _eos_in_settings(settings, source)
        self.eod = _find_eod(self._tokenizer, (eos, *_EOD_NAMES), source)
        self.fingerprint = fingerprint_of(content, include_special_tokens=include_special_tokens)
        if self.eod != _first_id(self._tokenizer, _EOD_NAMES):  # not determined by the content
            self.fingerprint += f"-eod-{self.eod}"
        optional = {_SETTINGS: settings, TEMPLATE_FILE: chat_template}
        self.files: Mapping[str, bytes] = {"tokenizer.json": content} | {
            name: value for name, value in optional.items() if value is not None
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._tokenizer.encode_special_tokens = True  # the library does not pickle it

    @property
    def chat_templates(self) -> ChatTemplates:
        """Chat templates and special tokens in the files.

        Raises:
            TokenizerError: `chat_template` in `tokenizer_config.json` is not a template.
        """
        template = self.files.get(TEMPLATE_FILE)
        return parse_chat_templates(
            json.loads(self.files.get(_SETTINGS, b"{}")),
            source=self._source.with_name(_SETTINGS),
            template=None if template is None else template.decode(),
        )

    @property
    def special_names(self) -> tuple[str, ...]:
        """Texts of the special tokens."""
        added = self._tokenizer.get_added_tokens_decoder().values()
        return tuple(token.content for token in added if token.special)

    def encode_with_offsets(self, text: str, /) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the ids of a text with special tokens, and start and end of each in characters. Adds no tokens."""
        self._tokenizer.encode_special_tokens = False
        try:
            encoded = self._tokenizer.encode(text, add_special_tokens=False)
        finally:
            self._tokenizer.encode_special_tokens = True
        return encoded.ids, encoded.offsets

    def token_id(self, token: str, /) -> int | None:
        """Return the id of a token; None if the vocabulary does not contain it."""
        token_id: int | None = self._tokenizer.token_to_id(token)
        return token_id

    def encode(self, text: str) -> list[int]:
        """Convert text to token ids, without an end-of-document token."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=self._include_special_tokens).ids
        return ids

    def encode_batch(self, texts: Sequence[str], /) -> list[list[int]]:
        """Convert each text to token ids, in one thread.

        About a third faster than `encode`, because the library computes no positions.
        """
        if type(self).encode is not JsonTokenizer.encode:
            return [self.encode(text) for text in texts]
        with _single_threaded():
            encodings = self._tokenizer.encode_batch_fast(
                list(texts), add_special_tokens=self._include_special_tokens
            )
        return [encoding.ids for encoding in encodings]

    def decode(self, ids: Sequence[int]) -> str:
        """Convert token ids to text, including the text of special tokens."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=False)
        return text


class FileTokenizer(JsonTokenizer):
    """Tokenizer read from a `tokenizer.json` file.

    Args:
        path: The file, or the folder that contains it. A `tokenizer_config.json` in the same folder may name the
            end-of-document token.
        include_special_tokens: See `JsonTokenizer`.

    Raises:
        DataPathError: The file does not exist.
        TokenizerError: The file is not a tokenizer, or it has no end-of-document token.
    """

    def __init__(self, path: str | Path, *, include_special_tokens: bool = True) -> None:
        file = require_local_file(
            Path(path) / "tokenizer.json" if Path(path).is_dir() else Path(path),
            reader="a tokenizer is read from a local tokenizer.json",
            fix="Pass its path or its folder.",
        )
        settings, template = file.with_name(_SETTINGS), file.with_name(TEMPLATE_FILE)
        super().__init__(
            file.read_bytes(),
            source=file,
            settings=settings.read_bytes() if settings.is_file() else None,
            chat_template=template.read_bytes() if template.is_file() else None,
            include_special_tokens=include_special_tokens,
        )


def load_gpt2_bpe(vocab_file: Path, merge_file: Path) -> JsonTokenizer:
    """Load a byte-level BPE from GPT-2's two files: token ids, and merges in order.

    Raises:
        DataPathError: A file does not exist.
        TokenizerError: The files do not define a BPE, or lack `<|endoftext|>`.
    """
    for file, field in ((vocab_file, "vocab_file"), (merge_file, "merge_file")):
        reader = "GPT2BPETokenizer reads a local vocab.json and merges.txt"
        require_local_file(file, reader=reader, fix=f"Correct tokenizer.{field}.")
    try:
        model = models.BPE.from_file(str(vocab_file), str(merge_file))
    except Exception as error:  # the library raises nothing narrower
        raise TokenizerError(
            f"{vocab_file}, {merge_file}: are not a BPE ({error}). Pass the vocab.json and the merges.txt of the same "
            "tokenizer."
        ) from error
    return JsonTokenizer(_byte_level(model).to_str().encode(), source=vocab_file)


def train_bpe(
    files: Sequence[str | Path],
    *,
    vocab_size: int,
    out: str | Path,
    progress: Progress | None = None,
) -> FileTokenizer:
    """Train a byte-level BPE tokenizer and write it as a `tokenizer.json`.

    Deterministic: the same files give the same tokenizer. Training uses one thread, so the process may fork
    afterwards, as data loaders do.

    Args:
        files: UTF-8 text files.
        vocab_size: Exact number of entries: the 256 bytes, `<|endoftext|>` and merges.
        out: Path of the file to write.
        progress: Called with the stage, the number of files read and the total number of files. Computing the merges
            after the last file takes about a third of the time.

    Raises:
        TokenizerError: `vocab_size` is below 257, or the text does not contain enough pairs to merge.
    """
    return train_bpe_on_texts(_read_texts(files, progress), vocab_size=vocab_size, out=out)


def train_bpe_on_texts(texts: Iterator[str], *, vocab_size: int, out: str | Path) -> FileTokenizer:
    """Train a tokenizer on texts; see `train_bpe`."""
    if vocab_size < BYTE_ENTRIES:
        raise TokenizerError(
            f"vocab_size: {vocab_size} is below {BYTE_ENTRIES}; the vocabulary always contains the 256 bytes and the "
            f"end-of-document token. Use {BYTE_ENTRIES} or more."
        )
    tokenizer = _byte_level(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_DOCUMENT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    with _single_threaded():
        tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != vocab_size:
        raise TokenizerError(
            f"vocab_size: {vocab_size} entries requested, but the text yields {tokenizer.get_vocab_size()}; no pair of "
            "tokens is left to merge. Provide more text, or set vocab_size (dataset.vocab_size in a run) to "
            f"{tokenizer.get_vocab_size()} or less."
        )
    tokenizer.save(str(out))
    return FileTokenizer(out)


def _byte_level(model: Any) -> Any:
    """Return a tokenizer that works on bytes and splits words as GPT-2 does."""
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _read_texts(files: Sequence[str | Path], progress: Progress | None) -> Iterator[str]:
    for number, file in enumerate(files, start=1):
        yield Path(file).read_bytes().decode("utf-8-sig")
        if progress is not None:
            progress("train tokenizer", number, len(files))


def _parse(content: bytes, file: Path) -> Any:
    try:
        return Tokenizer.from_buffer(content)
    except Exception as error:  # the library raises nothing narrower
        raise TokenizerError(f"{file}: is not a tokenizer ({error}). Pass a tokenizer.json.") from error


def _first_id(tokenizer: Any, names: Iterable[str | None]) -> int | None:
    ids = (tokenizer.token_to_id(name) for name in names if name)
    return next((token_id for token_id in ids if token_id is not None), None)


def _find_eod(tokenizer: Any, names: Sequence[str | None], source: Path) -> int:
    """Return the end-of-document id, which has the first of the names."""
    token_id = _first_id(tokenizer, names)
    if token_id is None:
        raise TokenizerError(
            f"{source}: has no token that ends a document (tried {', '.join(filter(None, names))}); documents could "
            "not be separated. Set eos_token in a tokenizer_config.json in the same folder."
        )
    return token_id


def _eos_in_settings(settings: bytes, source: Path) -> str | None:
    try:
        named = json.loads(settings).get("eos_token")
        name = named["content"] if isinstance(named, dict) else named
        if not isinstance(name, str | None):
            raise TypeError(f"eos_token is {name!r}, which is not a string")
        return name
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        raise TokenizerError(
            f"{source.with_name(_SETTINGS)}: is not a JSON object with an eos_token ({error}); the file may name the "
            "end-of-document token. Correct it."
        ) from error


@contextmanager
def _single_threaded() -> Iterator[None]:
    """Prevent the library from starting threads.

    After it has started threads, every fork of the process prints a warning. The environment variable is the library's
    only switch. A value that is already set is kept.
    """
    if _PARALLELISM in os.environ:
        yield
        return
    os.environ[_PARALLELISM] = "false"
    try:
        yield
    finally:
        del os.environ[_PARALLELISM]
