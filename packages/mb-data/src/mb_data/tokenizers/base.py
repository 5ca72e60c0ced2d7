"""Tokenizer interface, and the tokenizers that require no library.

`mb_data.tokenizers.loading` loads the tokenizers that are stored in files.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Protocol, runtime_checkable

from mb_data.errors import DataPathError, TokenizerError
from mb_data.tokenizers.rules import BYTE_ENTRIES


class Tokenizer(Protocol):
    """Interface of a tokenizer. Instances are pickled for worker processes."""

    @property
    def vocab_size(self) -> int:
        """Number of entries. Every id is below it."""

    @property
    def eod(self) -> int:
        """End-of-document id."""

    @property
    def fingerprint(self) -> str:
        """Hash of everything that the output of the tokenizer depends on."""

    def encode(self, text: str) -> list[int]:
        """Convert text to token ids, without an end-of-document token."""

    def decode(self, ids: Sequence[int]) -> str:
        """Convert token ids to text. Bytes that are not UTF-8 become the replacement character."""


@runtime_checkable
class TokenLookup(Protocol):
    """Tokenizer whose entries can be looked up by name."""

    def token_id(self, token: str, /) -> int | None:
        """Return the id of an entry; None if it does not exist."""


@runtime_checkable
class BatchTokenizer(Protocol):
    """Tokenizer that encodes several texts faster than one after the other."""

    def encode_batch(self, texts: Sequence[str], /) -> list[list[int]]:
        """Convert each text to token ids, as `encode` does."""
        ...


def encode_texts(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Convert each text to token ids, together if the tokenizer can."""
    if type(tokenizer).encode is TokenizerWithAdditions.encode:  # encodes as its base does
        return encode_texts(tokenizer.base, texts)  # type: ignore[attr-defined]
    if isinstance(tokenizer, BatchTokenizer):
        return tokenizer.encode_batch(texts)
    return [tokenizer.encode(text) for text in texts]


def end_document(ids: list[int], eod: int) -> list[int]:
    """Return the ids of a document with one end-of-document id, which the tokenizer may have appended itself."""
    return ids if ids and ids[-1] == eod else ids + [eod]  # noqa: RUF005 - a list of exact size


def decode_stream(tokenizer: Tokenizer, ids: Iterable[int]) -> Iterator[str]:
    """Yield each piece of text as soon as the bytes of its ids form complete characters."""
    pending: list[int] = []
    for token_id in ids:
        pending.append(token_id)
        text = tokenizer.decode(pending)
        if not text.endswith("\N{REPLACEMENT CHARACTER}"):
            yield text
            pending = []
    if pending:
        yield tokenizer.decode(pending)


class ByteTokenizer:
    """Tokenizer of the 256 bytes of UTF-8 and an end-of-document token. Requires no file and no library."""

    vocab_size = BYTE_ENTRIES
    eod = BYTE_ENTRIES - 1
    fingerprint = "bytes"

    def encode(self, text: str) -> list[int]:
        """Return the bytes of the text."""
        return list(text.encode())

    @property
    def special_names(self) -> tuple[str, ...]:
        """Texts of the special tokens: none, because the end-of-document token has no text."""
        return ()

    def encode_with_offsets(self, text: str, /) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the bytes of the text, and start and end of the character of each."""
        spans = [(number, number + 1) for number, char in enumerate(text) for _ in char.encode()]
        return self.encode(text), spans

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of the bytes, without end-of-document tokens."""
        return bytes(token_id for token_id in ids if token_id != self.eod).decode(errors="replace")


class NullTokenizer:
    """Tokenizer of numbers separated by spaces, for data that is not text.

    Args:
        vocab_size: Number of entries.
        eod: End-of-document id; None: the last entry.
    """

    def __init__(self, vocab_size: int, *, eod: int | None = None) -> None:
        self.vocab_size = vocab_size
        self.eod = vocab_size - 1 if eod is None else eod
        self.fingerprint = f"null-{vocab_size}-{self.eod}"

    def encode(self, text: str) -> list[int]:
        """Return the numbers.

        Raises:
            TokenizerError: A word of the text is not a number, or not an entry of the vocabulary.
        """
        words = text.split()
        wrong = [word for word in words if not word.isdecimal() or int(word) >= self.vocab_size]
        if wrong:
            raise TokenizerError(
                f"NullTokenizer: {wrong[0]!r} is not a number below {self.vocab_size}; other text has no ids. "
                "Use another tokenizer for words."
            )
        return [int(word) for word in words]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the numbers separated by spaces."""
        return " ".join(str(token_id) for token_id in ids)


class TokenizerWithAdditions:
    """Tokenizer with named entries after those of another tokenizer. They are never produced from text.

    Args:
        base: Tokenizer that converts text to ids.
        names: Ids of the additional entries, and their names.
        fingerprint: Fingerprint of the tokenizer.
    """

    def __init__(self, base: Tokenizer, names: Mapping[int, str], *, fingerprint: str) -> None:
        self.base, self._names, self.fingerprint = base, names, fingerprint
        self.vocab_size, self.eod = base.vocab_size + len(names), base.eod

    @property
    def added_tokens(self) -> Mapping[str, int]:
        """Texts of the added tokens that a chat template may contain, and their ids."""
        return {}

    def token_id(self, token: str, /) -> int | None:
        """Return the id of an entry of the base tokenizer; None if it does not exist."""
        return token_id(self.base, token)

    def encode(self, text: str) -> list[int]:
        """Convert text to token ids. The result never contains additional entries."""
        return self.base.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        """Convert token ids to text, with the names of additional entries."""
        return decode_with_names(ids, self._names, decode=self.base.decode)


class ExtendedTokenizer(TokenizerWithAdditions):
    """Tokenizer with additional special tokens after the entries of another tokenizer.

    A name that the other tokenizer already has is not added again. Names that occur in a text are encoded as ordinary
    text, so an added token is never produced from text.

    Args:
        tokenizer: Tokenizer that converts text to ids.
        names: Names of the tokens, in the order of their ids.

    Raises:
        TokenizerError: A name is empty, or occurs twice.
    """

    def __init__(self, tokenizer: Tokenizer, names: Sequence[str]) -> None:
        if not all(names) or len(set(names)) < len(names):
            raise TokenizerError(
                f"ExtendedTokenizer: {list(names)}; tokens are identified by their names. "
                "Use nonempty, unique names."
            )
        new = [name for name in names if token_id(tokenizer, name) is None]
        described = hashlib.sha256("\0".join(new).encode()).hexdigest()[:16]
        super().__init__(
            tokenizer,
            dict(enumerate(new, start=tokenizer.vocab_size)),
            fingerprint=f"{tokenizer.fingerprint}-added-{described}" if new else tokenizer.fingerprint,
        )
        self._ids = {name: token_id for token_id, name in self._names.items()}

    @property
    def added_tokens(self) -> Mapping[str, int]:
        """Texts of the added tokens, and their ids."""
        return self._ids

    def token_id(self, token: str, /) -> int | None:
        """Return the id of an added token or of an entry of the base tokenizer; None if it does not exist."""
        return self._ids.get(token, super().token_id(token))


class SentinelTokenizer(TokenizerWithAdditions):
    """Tokenizer with sentinels after the entries of another tokenizer.

    Sentinel k has the id `tokenizer.vocab_size + k` and the text `<extra_id_k>`. Sentinels are never produced from
    text. There is no entry for padding or for the start of the decoder; the end-of-document token serves as both.

    Args:
        tokenizer: Tokenizer that converts text to ids.
        sentinels: Number of sentinels.

    Raises:
        TokenizerError: `sentinels` is negative.
    """

    def __init__(self, tokenizer: Tokenizer, *, sentinels: int) -> None:
        if sentinels < 0:
            raise TokenizerError(
                f"SentinelTokenizer: {sentinels} sentinels would remove entries of the vocabulary, such as the "
                "end-of-document token. Set tokenizer.vocab_extra_ids to 0 or more."
            )
        self.sentinels = range(tokenizer.vocab_size, tokenizer.vocab_size + sentinels)
        super().__init__(tokenizer, {}, fingerprint=f"{tokenizer.fingerprint}-sentinels-{sentinels}")
        self.vocab_size += sentinels

    def decode(self, ids: Sequence[int]) -> str:
        """Convert token ids to text, with the names of sentinels."""
        first = self.sentinels.start
        names = {
            number: f"<extra_id_{number - first}>" for number in map(int, ids) if number in self.sentinels
        }
        return decode_with_names(ids, names, decode=self.base.decode)


def unwrap_tokenizer(tokenizer: Tokenizer) -> Tokenizer:
    """Return the base tokenizer, without added tokens and sentinels. It encodes texts to the same ids."""
    while isinstance(tokenizer, TokenizerWithAdditions):
        tokenizer = tokenizer.base
    return tokenizer


def token_id(tokenizer: Tokenizer, token: str) -> int | None:
    """Return the id of an entry; None if it does not exist, or if the tokenizer has no `token_id` method."""
    return tokenizer.token_id(token) if isinstance(tokenizer, TokenLookup) else None


def decode_with_names(
    ids: Sequence[int], names: Mapping[int, str], *, decode: Callable[[Sequence[int]], str]
) -> str:
    """Convert token ids to text: ids in `names` by their name, the runs between them by `decode`."""
    runs = (
        (named, list(run)) for named, run in groupby(map(int, ids), key=lambda token_id: token_id in names)
    )
    return "".join(
        "".join(names[token_id] for token_id in run) if named else decode(run) for named, run in runs
    )


def require_local_file(path: Path, *, reader: str, fix: str) -> Path:
    """Return the path of a tokenizer file. `reader` states what reads it, and `fix` how to correct the path.

    Raises:
        DataPathError: The file does not exist.
    """
    if not path.is_file():
        raise DataPathError(f"{path}: no such file; {reader}, and nothing is downloaded. {fix}")
    return path


def fingerprint_of(content: bytes, *, include_special_tokens: bool) -> str:
    """Return a hash of the content of a tokenizer file and the option with which it is read."""
    return hashlib.sha256(content + bytes([include_special_tokens])).hexdigest()[:32]


def is_read_from(tokenizer: Tokenizer, file: Path) -> bool:
    """Return True if a tokenizer was read from a copy of a `tokenizer.json`, with or without special tokens."""
    content = file.read_bytes()
    return tokenizer.fingerprint in {
        fingerprint_of(content, include_special_tokens=included) for included in (True, False)
    }
