"""The door to `tiktoken`: byte-level BPE of a ranked list, with special tokens before it."""

import base64
import binascii
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import tiktoken

from mb_data.errors import DataPathError, TokenizerError

DEFAULT_SPECIAL_TOKENS = ("<unk>", "<s>", "</s>", "<mask>", "<pad>", "<cls>", "<sep>")
"""Special tokens that there always are; `</s>` ends a document."""

MAX_ENTRIES = 1 << 17
"""Entries at most where no size is asked for, as Megatron Core has it."""

_LEAD = r"[^\r\n\p{L}\p{N}]?"
_HIGH, _LOW = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_BLANKS = (r"\s+(?!\S)", r"\s+")
PATTERNS = {
    "v1": (rf"{_LEAD}\p{{L}}+", r"\p{N}", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]", *_BLANKS),
    "v2": (
        rf"{_LEAD}{_HIGH}*{_LOW}+",
        rf"{_LEAD}{_HIGH}+{_LOW}*",
        r"\p{N}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        *_BLANKS,
    ),
}
"""What a text is divided into before bytes are merged: words, digits, signs and blanks, the first that fits."""


class TikTokenizer:
    """A tokenizer read from a JSON list of `{"rank", "token_bytes", "token_str"}`, the bytes in base64.

    Entries are numbered as Megatron Core does: special tokens, places kept for more of them, and behind these the
    list. A special token that is written out in a text is text: only `eod` ends a document.

    Args:
        path: The file.
        vocab_size: Entries in all; the list is cut there. None: all of the list, but at most 131,072.
        pattern: What divides a text, `v1` or `v2`.
        reserved: Places for special tokens.
        special_tokens: Their names, the customary ones among them; None: only these.

    Raises:
        DataPathError: There is no such file.
        TokenizerError: The file is no such list, or has too few entries; a customary special token is missing, a name
            comes twice, there are more than places, or another pattern is asked for.
    """

    def __init__(
        self,
        path: Path,
        *,
        vocab_size: int | None = None,
        pattern: str = "v2",
        reserved: int = 1000,
        special_tokens: Sequence[str] | None = None,
    ) -> None:
        names = _special_tokens(
            DEFAULT_SPECIAL_TOKENS if special_tokens is None else special_tokens, reserved
        )
        if pattern not in PATTERNS:
            raise TokenizerError(
                f"tokenizer.tiktoken_pattern: {pattern!r} divides no text; there are {', '.join(PATTERNS)}. "
                "Choose one of them."
            )
        content = _read(path)
        entries = _parse_entries(content, path)[: (vocab_size or MAX_ENTRIES) - reserved]
        if vocab_size is not None and len(entries) + reserved != vocab_size:
            raise TokenizerError(
                f"{path}: {len(entries)} entries and {reserved} places for special tokens are "
                f"{len(entries) + reserved} of vocab_size={vocab_size}. Set tokenizer.vocab_size to that, or leave "
                "it unset."
            )
        self._encoding = tiktoken.Encoding(
            name=str(path),
            pat_str="|".join(PATTERNS[pattern]),
            mergeable_ranks={entry: reserved + rank for rank, entry in enumerate(entries)},
            special_tokens={name: number for number, name in enumerate(names)},
        )
        self._names = {name: number for number, name in enumerate(names)}
        self.vocab_size = reserved + len(entries)
        self.eod = self._names["</s>"]
        described = json.dumps([pattern, names, self.vocab_size]).encode()
        self.fingerprint = f"tiktoken-{hashlib.sha256(content + described).hexdigest()[:32]}"
        self.files: Mapping[str, bytes] = {"tiktoken.json": content}

    def token_id(self, token: str, /) -> int | None:
        """Return the id of a special token; None where there is no such special token."""
        return self._names.get(token)

    def encode(self, text: str) -> list[int]:
        """Turn text into ids, without an end of document."""
        ids: list[int] = self._encoding.encode_ordinary(text)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Turn ids into text, special tokens written out; ids behind the vocabulary are left out."""
        text: str = self._encoding.decode([int(number) for number in ids if number < self.vocab_size])
        return text


def _special_tokens(names: Sequence[str], reserved: int) -> list[str]:
    """Return the special tokens with names for the places that are kept for more."""
    if reserved > MAX_ENTRIES:
        raise TokenizerError(
            f"tokenizer.tiktoken_num_special_tokens: {reserved} places are more than the {MAX_ENTRIES} entries that a "
            "TikTokenizer has. Set it to the number that the tokenizer was trained with, such as 1000."
        )
    missing = [name for name in DEFAULT_SPECIAL_TOKENS if name not in names]
    if missing or len(set(names)) < len(names) or len(names) > reserved:
        raise TokenizerError(
            f"tokenizer.special_tokens: {len(names)} names, {len(set(names))} of them different, for {reserved} places "
            f"and without {missing}; each has a place of its own, and the customary ones are always there. Begin with "
            f"{list(DEFAULT_SPECIAL_TOKENS)}, or raise tokenizer.tiktoken_num_special_tokens."
        )
    return [*names, *(f"<SPECIAL_{index}>" for index in range(len(names), reserved))]


def _read(path: Path) -> bytes:
    if not path.is_file():
        raise DataPathError(
            f"{path}: no such file; a TikTokenizer is read from a list of entries on this machine, and nothing is "
            "downloaded. Correct tokenizer.tokenizer_model."
        )
    return path.read_bytes()


def _parse_entries(content: bytes, path: Path) -> list[bytes]:
    """Return the bytes of each entry in the order of their ranks."""
    try:
        records = json.loads(content)
        entries = [base64.b64decode(record["token_bytes"], validate=True) for record in records]
        ranks = [record["rank"] for record in records]
    except (ValueError, KeyError, TypeError, binascii.Error) as error:
        raise TokenizerError(
            f"{path}: is no list of entries with rank and token_bytes ({type(error).__name__}: {error}); other files "
            "do not say which ids special tokens have. Use HuggingFaceTokenizer with a tokenizer.json for them."
        ) from error
    lacking = sum(bytes([byte]) not in entries[:256] for byte in range(256))
    if ranks != list(range(len(ranks))) or lacking or len(set(entries)) < len(entries):
        raise TokenizerError(
            f"{path}: {len(ranks)} entries, {len(set(entries))} of them different, {lacking} of the 256 bytes missing "
            "at their head; ranks count from 0 without gaps, and every byte has one. Use a whole list."
        )
    return entries
