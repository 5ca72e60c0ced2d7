"""Adapter for `tiktoken`: byte-level BPE of a ranked list, preceded by special tokens."""

import base64
import binascii
import hashlib
import json
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path

import tiktoken

from mb_data.errors import TokenizerError
from mb_data.tokenizers.base import require_local_file

DEFAULT_SPECIAL_TOKENS = ("<unk>", "<s>", "</s>", "<mask>", "<pad>", "<cls>", "<sep>")
"""Special tokens of every TikTokenizer. `</s>` is the end-of-document token."""

MAX_ENTRIES = 1 << 17
"""Maximum number of entries if no vocabulary size is set, as in Megatron Core."""

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
"""Alternatives by which a text is split before bytes are merged: words, digits, punctuation and whitespace."""


class TikTokenizer:
    """Tokenizer read from a JSON list of `{"rank", "token_bytes", "token_str"}`, with the bytes in base64.

    Ids are assigned as in Megatron Core: special tokens first, then ids reserved for more special tokens, then the
    list. Special tokens that occur in a text are encoded as ordinary text. Only the id `eod` ends a document.

    Args:
        path: Path of the file.
        vocab_size: Total number of entries, to which the list is truncated. None: the complete list, but at most
            131,072 entries in total.
        pattern: Version of the split pattern, `v1` or `v2`.
        reserved: Number of ids that are reserved for special tokens.
        special_tokens: Names of the special tokens, including the default ones; None: only the default ones.

    Raises:
        DataPathError: The file does not exist.
        TokenizerError: The file is not such a list or has too few entries, a default special token is missing, a name
            occurs twice, there are more names than reserved ids, or the pattern does not exist.
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
                f"tokenizer.tiktoken_pattern: {pattern!r} does not exist; the patterns are {', '.join(PATTERNS)}. "
                "Use one of them."
            )
        content = require_local_file(
            path,
            reader="a TikTokenizer is read from a local list of entries",
            fix="Correct tokenizer.tokenizer_model.",
        ).read_bytes()
        entries = _parse_entries(content, path)[: (vocab_size or MAX_ENTRIES) - reserved]
        if vocab_size is not None and len(entries) + reserved != vocab_size:
            raise TokenizerError(
                f"{path}: {len(entries)} entries and {reserved} reserved special tokens are "
                f"{len(entries) + reserved}, but vocab_size={vocab_size}. Set tokenizer.vocab_size to the former, or "
                "leave it unset."
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
        """Return the id of a special token; None if it does not exist."""
        return self._names.get(token)

    def encode(self, text: str) -> list[int]:
        """Convert text to token ids, without an end-of-document token."""
        ids: list[int] = self._encoding.encode_ordinary(text)
        return ids

    @property
    def special_names(self) -> tuple[str, ...]:
        """Texts of the special tokens."""
        return tuple(self._names)

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the ids of a text that contains special tokens, and start and end of each in characters.

        Tokens that are parts of one character have its position.
        """
        ids: list[int] = self._encoding.encode(text, allowed_special="all")
        pieces = self._encoding.decode_tokens_bytes(ids)
        ends = accumulate(len(piece) for piece in pieces)
        character = [number for number, char in enumerate(text) for _ in char.encode()]
        return ids, [
            (character[end - len(piece)], character[end - 1] + 1)
            for end, piece in zip(ends, pieces, strict=True)
        ]

    def decode(self, ids: Sequence[int]) -> str:
        """Convert token ids to text, including special tokens. Ids beyond the vocabulary are skipped."""
        text: str = self._encoding.decode([int(number) for number in ids if number < self.vocab_size])
        return text


def _special_tokens(names: Sequence[str], reserved: int) -> list[str]:
    """Return the special tokens, with generated names for the remaining reserved ids."""
    if reserved > MAX_ENTRIES:
        raise TokenizerError(
            f"tokenizer.tiktoken_num_special_tokens: {reserved} exceeds the maximum of {MAX_ENTRIES} entries of a "
            "TikTokenizer. Set it to the number that the tokenizer was trained with, such as 1000."
        )
    missing = [name for name in DEFAULT_SPECIAL_TOKENS if name not in names]
    if missing or len(set(names)) < len(names) or len(names) > reserved:
        raise TokenizerError(
            f"tokenizer.special_tokens: {len(names)} names, {len(set(names))} of them different, for {reserved} "
            f"reserved ids, missing {missing}; each name needs an id, and the default names are required. Start with "
            f"{list(DEFAULT_SPECIAL_TOKENS)}, or increase tokenizer.tiktoken_num_special_tokens."
        )
    return [*names, *(f"<SPECIAL_{index}>" for index in range(len(names), reserved))]


def _parse_entries(content: bytes, path: Path) -> list[bytes]:
    """Return the bytes of each entry in the order of the ranks."""
    try:
        records = json.loads(content)
        entries = [base64.b64decode(record["token_bytes"], validate=True) for record in records]
        ranks = [record["rank"] for record in records]
    except (ValueError, KeyError, TypeError, binascii.Error) as error:
        raise TokenizerError(
            f"{path}: is not a list of entries with rank and token_bytes ({type(error).__name__}: {error}); other "
            "formats do not define the ids of special tokens. Use HuggingFaceTokenizer with a tokenizer.json for them."
        ) from error
    lacking = sum(bytes([byte]) not in entries[:256] for byte in range(256))
    if ranks != list(range(len(ranks))) or lacking or len(set(entries)) < len(entries):
        raise TokenizerError(
            f"{path}: {len(ranks)} entries, {len(set(entries))} of them different, {lacking} of the 256 bytes missing "
            "among the first 256; ranks count from 0 without gaps, and every byte has one. Use a complete list."
        )
    return entries
