"""Text to token ids and back.

The tokenizers that need no library are here; `mb_data.bpe` is the door to the `tokenizers` library.
"""

import hashlib
from collections.abc import Sequence
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import Protocol, cast

from mb_data.errors import TokenizerError
from mb_data.tokenizer_config import TokenizerConfig
from mb_data.tokenizer_rules import BYTE_ENTRIES


class Tokenizer(Protocol):
    """What this package asks of a tokenizer. Workers of other processes get it pickled."""

    @property
    def vocab_size(self) -> int:
        """Number of entries: every id is below it."""

    @property
    def eod(self) -> int:
        """Id that ends a document."""

    @property
    def fingerprint(self) -> str:
        """A hash of everything that its output depends on."""

    def encode(self, text: str) -> list[int]:
        """Turn text into ids, without an end of document."""

    def decode(self, ids: Sequence[int]) -> str:
        """Turn ids into text; bytes that are not UTF-8 become the replacement character."""


class ByteTokenizer:
    """The 256 bytes of UTF-8, and an end of document: needs no file and no library."""

    vocab_size = BYTE_ENTRIES
    eod = BYTE_ENTRIES - 1
    fingerprint = "bytes"

    def encode(self, text: str) -> list[int]:
        """Return the bytes of the text."""
        return list(text.encode())

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of the bytes; ends of documents are left out."""
        return bytes(number for number in ids if number != self.eod).decode(errors="replace")


class NullTokenizer:
    """Text that is numbers separated by blanks: for data without words.

    Args:
        vocab_size: Number of entries.
        eod: Id that ends a document; None: the last entry.
    """

    def __init__(self, vocab_size: int, *, eod: int | None = None) -> None:
        self.vocab_size = vocab_size
        self.eod = vocab_size - 1 if eod is None else eod
        self.fingerprint = f"null-{vocab_size}-{self.eod}"

    def encode(self, text: str) -> list[int]:
        """Return the numbers.

        Raises:
            TokenizerError: Something in the text is no number, or no entry of the vocabulary.
        """
        words = text.split()
        wrong = [word for word in words if not word.isdecimal() or int(word) >= self.vocab_size]
        if wrong:
            raise TokenizerError(
                f"NullTokenizer: {wrong[0]!r} is not a number below {self.vocab_size}; it knows nothing else. "
                "Use another tokenizer for words."
            )
        return [int(word) for word in words]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the numbers separated by blanks."""
        return " ".join(str(number) for number in ids)


class SentinelTokenizer:
    """A tokenizer with sentinels: entries behind its own, which no text becomes.

    Sentinel number k has the id `tokenizer.vocab_size + k` and is written `<extra_id_k>`. There is no entry for padding
    or for the start of a decoder: the end of a document stands for both.

    Args:
        tokenizer: Turns text into ids.
        sentinels: How many there are.

    Raises:
        TokenizerError: Fewer than 0.
    """

    def __init__(self, tokenizer: Tokenizer, *, sentinels: int) -> None:
        if sentinels < 0:
            raise TokenizerError(
                f"SentinelTokenizer: {sentinels} sentinels would take entries of the vocabulary away, such as the end "
                "of a document. Set tokenizer.vocab_extra_ids to 0 or more."
            )
        self.plain = tokenizer
        self.sentinels = range(tokenizer.vocab_size, tokenizer.vocab_size + sentinels)
        self.vocab_size = self.sentinels.stop
        self.eod = tokenizer.eod
        self.fingerprint = f"{tokenizer.fingerprint}-sentinels-{sentinels}"

    def encode(self, text: str) -> list[int]:
        """Turn text into ids, none of them a sentinel's."""
        return self.plain.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        """Turn ids into text, with `<extra_id_0>` and so on for sentinels."""
        runs = (
            (marked, list(run)) for marked, run in groupby(ids, key=lambda number: number in self.sentinels)
        )
        return "".join(
            "".join(f"<extra_id_{number - self.sentinels.start}>" for number in run)
            if marked
            else self.plain.decode(run)
            for marked, run in runs
        )


def with_sentinels(tokenizer: Tokenizer, config: TokenizerConfig) -> Tokenizer:
    """Add the `vocab_extra_ids` that a section asks for, if any.

    Raises:
        TokenizerError: It asks for fewer than 0.
    """
    number = config.vocab_extra_ids
    return SentinelTokenizer(tokenizer, sentinels=number) if number else tokenizer


def plain(tokenizer: Tokenizer) -> Tokenizer:
    """Return a tokenizer without its sentinels, if it has any: it makes the same ids of texts."""
    return tokenizer.plain if isinstance(tokenizer, SentinelTokenizer) else tokenizer


def load_tokenizer(source: TokenizerConfig | str | Path) -> Tokenizer:
    """Make the tokenizer that a configuration or a path describes.

    Args:
        source: A configuration section, whose `vocab_extra_ids` are added as sentinels; or the path of a
            `tokenizer.json`, or of a folder that holds one.

    Raises:
        DataPathError: There is no `tokenizer.json`.
        TokenizerError: The type is not supported, a setting is missing, or the file is not a tokenizer with an end of
            document; or fewer than 0 sentinels are asked for.
        ModuleNotFoundError: The file needs the `tokenizers` library, which is not installed.
    """
    if isinstance(source, str | Path):
        return _load_file(Path(source), include_special_tokens=True)
    return with_sentinels(_described(source), source)


def _described(source: TokenizerConfig) -> Tokenizer:
    if source.tokenizer_type == "ByteTokenizer":
        return ByteTokenizer()
    if source.tokenizer_type == "NullTokenizer" and source.vocab_size is not None:
        return NullTokenizer(source.vocab_size, eod=source.null_tokenizer_eod_id)
    if source.tokenizer_type == "HuggingFaceTokenizer" and source.tokenizer_model is not None:
        return _load_file(
            Path(source.tokenizer_model),
            include_special_tokens=not source.tokenizer_hf_no_include_special_tokens,
        )
    raise TokenizerError(
        f"tokenizer: cannot load type {source.tokenizer_type!r} (tokenizer_model={source.tokenizer_model!r}, "
        f"vocab_size={source.vocab_size}); ByteTokenizer needs nothing, NullTokenizer a vocab_size, "
        "HuggingFaceTokenizer a tokenizer_model, and no other type is supported yet. Set them."
    )


def fingerprint_of(content: bytes, *, include_special_tokens: bool) -> str:
    """Return a hash of a tokenizer's file and of how it is read."""
    return hashlib.sha256(content + bytes([include_special_tokens])).hexdigest()[:32]


def reads_file(tokenizer: Tokenizer, file: Path) -> bool:
    """Say whether a tokenizer is a `tokenizer.json`, read with special tokens or without."""
    content = file.read_bytes()
    return tokenizer.fingerprint in {
        fingerprint_of(content, include_special_tokens=included) for included in (True, False)
    }


def _load_file(path: Path, *, include_special_tokens: bool) -> Tokenizer:
    bpe = import_module("mb_data.bpe")  # only those who read a tokenizer.json need the library
    return cast(Tokenizer, bpe.FileTokenizer(path, include_special_tokens=include_special_tokens))
