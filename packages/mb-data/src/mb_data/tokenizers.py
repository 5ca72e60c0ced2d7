"""Text to token ids and back.

The tokenizers that need no library are here. `mb_data.tokenizer_loading` reads those that stand in files.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Protocol, runtime_checkable

from mb_data.errors import TokenizerError
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


@runtime_checkable
class TokenLookup(Protocol):
    """A tokenizer whose entries can be asked for by name."""

    def token_id(self, token: str, /) -> int | None:
        """Return the id of an entry, None where there is no such entry."""


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


class ExtendedTokenizer:
    """A tokenizer with more tokens: entries behind its own, which no text becomes.

    A name that the tokenizer has already is not added again. Where a name is written out in a text, it stays text.

    Args:
        tokenizer: Turns text into ids.
        names: What the tokens are called, in the order of their ids.

    Raises:
        TokenizerError: A name is empty, or comes twice.
    """

    def __init__(self, tokenizer: Tokenizer, names: Sequence[str]) -> None:
        if not all(names) or len(set(names)) < len(names):
            raise TokenizerError(
                f"ExtendedTokenizer: {list(names)}; tokens are told apart by their names. "
                "Give each a name, and each once."
            )
        new = [name for name in names if token_id(tokenizer, name) is None]
        self.base = tokenizer
        self._ids = {name: tokenizer.vocab_size + index for index, name in enumerate(new)}
        self._names = {number: name for name, number in self._ids.items()}
        self.vocab_size = tokenizer.vocab_size + len(new)
        self.eod = tokenizer.eod
        described = hashlib.sha256("\0".join(new).encode()).hexdigest()[:16]
        self.fingerprint = f"{tokenizer.fingerprint}-added-{described}" if new else tokenizer.fingerprint

    def token_id(self, token: str, /) -> int | None:
        """Return the id of an added token, or of an entry of the tokenizer; None where there is no such entry."""
        added = self._ids.get(token)
        return token_id(self.base, token) if added is None else added

    def encode(self, text: str) -> list[int]:
        """Turn text into ids, none of them an added token's."""
        return self.base.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        """Turn ids into text, with the names of added tokens."""
        return decode_with_names(ids, self._names, decode=self.base.decode)


class _SentinelNames(Mapping[int, str]):
    """Ids of sentinels to their names, computed on access: a size is planned with before it is known to fit."""

    def __init__(self, ids: range) -> None:
        self._ids = ids

    def __getitem__(self, number: int) -> str:
        if number not in self._ids:
            raise KeyError(number)
        return f"<extra_id_{number - self._ids.start}>"

    def __iter__(self) -> Iterator[int]:
        return iter(self._ids)

    def __len__(self) -> int:
        return len(self._ids)


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
        self.base = tokenizer
        self.sentinels = range(tokenizer.vocab_size, tokenizer.vocab_size + sentinels)
        self.vocab_size = self.sentinels.stop
        self.eod = tokenizer.eod
        self.fingerprint = f"{tokenizer.fingerprint}-sentinels-{sentinels}"
        self._names = _SentinelNames(self.sentinels)

    def token_id(self, token: str, /) -> int | None:
        """Return the id of an entry of the tokenizer; None where there is no such entry."""
        return token_id(self.base, token)

    def encode(self, text: str) -> list[int]:
        """Turn text into ids, none of them a sentinel's."""
        return self.base.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        """Turn ids into text, with `<extra_id_0>` and so on for sentinels."""
        return decode_with_names(ids, self._names, decode=self.base.decode)


def unwrap_tokenizer(tokenizer: Tokenizer) -> Tokenizer:
    """Return a tokenizer without what was added to it, if anything was: it makes the same ids of texts."""
    while isinstance(tokenizer, SentinelTokenizer | ExtendedTokenizer):
        tokenizer = tokenizer.base
    return tokenizer


def token_id(tokenizer: Tokenizer, token: str) -> int | None:
    """Return the id of an entry; None where there is no such entry, or the tokenizer does not tell."""
    return tokenizer.token_id(token) if isinstance(tokenizer, TokenLookup) else None


def decode_with_names(
    ids: Sequence[int], names: Mapping[int, str], *, decode: Callable[[Sequence[int]], str]
) -> str:
    """Turn ids into text: some by their names, the runs between them by `decode`."""
    runs = ((named, list(run)) for named, run in groupby(map(int, ids), key=lambda number: number in names))
    return "".join("".join(names[number] for number in run) if named else decode(run) for named, run in runs)


def fingerprint_of(content: bytes, *, include_special_tokens: bool) -> str:
    """Return a hash of a tokenizer's file and of how it is read."""
    return hashlib.sha256(content + bytes([include_special_tokens])).hexdigest()[:32]


def is_read_from(tokenizer: Tokenizer, file: Path) -> bool:
    """Say whether a tokenizer is a `tokenizer.json`, read with special tokens or without."""
    content = file.read_bytes()
    return tokenizer.fingerprint in {
        fingerprint_of(content, include_special_tokens=included) for included in (True, False)
    }
