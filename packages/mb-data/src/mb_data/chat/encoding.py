"""Encoding of rendered conversations, in which special tokens are entries of the vocabulary and not ordinary text."""

import re
from typing import Protocol, runtime_checkable

from mb_data.chat.template import ChatTemplates
from mb_data.errors import TokenizerError
from mb_data.tokenizers.base import Tokenizer, TokenizerWithAdditions, token_id

Offsets = list[tuple[int, int]]


@runtime_checkable
class OffsetTokenizer(Protocol):
    """Tokenizer that encodes special tokens in a text as such, and returns the position of each token."""

    @property
    def special_names(self) -> tuple[str, ...]:
        """Texts of the special tokens."""

    def encode_with_offsets(self, text: str, /) -> tuple[list[int], Offsets]:
        """Return the ids, and start and end of each token in the text, in characters."""


@runtime_checkable
class TemplateTokenizer(Protocol):
    """Tokenizer that carries chat templates."""

    @property
    def chat_templates(self) -> ChatTemplates:
        """Chat templates and special tokens by name."""


class TokenizerWithTemplate(TokenizerWithAdditions):
    """Tokenizer with a chat template that replaces those of another tokenizer. Ids do not change.

    Args:
        tokenizer: Tokenizer that converts text to ids.
        template: Text of the Jinja template.
    """

    def __init__(self, tokenizer: Tokenizer, template: str) -> None:
        super().__init__(tokenizer, {}, fingerprint=tokenizer.fingerprint)
        self.chat_templates = chat_templates_of(tokenizer).replaced_by(template)


def chat_templates_of(tokenizer: Tokenizer) -> ChatTemplates:
    """Return the chat templates of a tokenizer; without templates if it carries none."""
    if isinstance(tokenizer, TemplateTokenizer):
        return tokenizer.chat_templates
    return (
        chat_templates_of(tokenizer.base)
        if isinstance(tokenizer, TokenizerWithAdditions)
        else ChatTemplates()
    )


def begin_token(tokenizer: Tokenizer) -> int | None:
    """Return the id of the beginning-of-sequence token that a tokenizer's files name; None if there is none."""
    name = chat_templates_of(tokenizer).special_tokens.get("bos_token")
    return None if name is None else token_id(tokenizer, name)


def encode_chat(tokenizer: Tokenizer, text: str) -> tuple[list[int], Offsets]:
    """Return the ids of a rendered conversation, and start and end of each token in characters.

    Nothing is added around the text, because the template contains the special tokens.

    Raises:
        TokenizerError: The tokenizer cannot encode special tokens that occur in a text.
    """
    if isinstance(tokenizer, TokenizerWithAdditions):
        return _encode_with_additions(tokenizer, text)
    if not isinstance(tokenizer, OffsetTokenizer):
        raise TokenizerError(
            f"dataset.dataset_kwargs.chat: a {type(tokenizer).__name__} cannot encode the special tokens of a chat "
            "template. Set tokenizer.tokenizer_type=HuggingFaceTokenizer and tokenizer.tokenizer_model to its "
            "tokenizer.json."
        )
    return tokenizer.encode_with_offsets(text)


def special_names(tokenizer: Tokenizer) -> tuple[str, ...]:
    """Return the texts of the special tokens of a tokenizer, including added ones."""
    if isinstance(tokenizer, TokenizerWithAdditions):
        return (*special_names(tokenizer.base), *tokenizer.added_tokens)
    return tokenizer.special_names if isinstance(tokenizer, OffsetTokenizer) else ()


def final_special(tokenizer: Tokenizer, text: str) -> str | None:
    """Return the special token with which a text ends, whitespace after it aside; None if it ends with other text."""
    names = [name for name in special_names(tokenizer) if text.rstrip().endswith(name)]
    return max(names, key=len, default=None)


def _encode_with_additions(tokenizer: TokenizerWithAdditions, text: str) -> tuple[list[int], Offsets]:
    """Encode the added tokens of a text, and the runs between them with the base tokenizer."""
    added = tokenizer.added_tokens
    if not added:
        return encode_chat(tokenizer.base, text)
    ids: list[int] = []
    offsets: Offsets = []
    position = 0
    longest_first = "|".join(re.escape(name) for name in sorted(added, key=len, reverse=True))
    for part in re.split(f"({longest_first})", text):
        if part in added:
            part_ids, part_offsets = [added[part]], [(0, len(part))]
        else:
            part_ids, part_offsets = encode_chat(tokenizer.base, part) if part else ([], [])
        ids += part_ids
        offsets += [(start + position, end + position) for start, end in part_offsets]
        position += len(part)
    return ids, offsets
