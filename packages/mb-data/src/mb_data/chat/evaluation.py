"""Texts of an evaluation harness: special tokens in a text are entries of the vocabulary, chats are rendered."""

from collections.abc import Mapping, Sequence
from typing import Any

from mb_data.chat.encoding import OffsetTokenizer, begin_token, chat_templates_of, encode_chat, special_names
from mb_data.chat.prompt import render_prompt
from mb_data.errors import TokenizerError
from mb_data.tokenizers.base import Tokenizer, token_id, unwrap_tokenizer


class EvaluationTokenizer:
    """Tokenizer as evaluation harnesses use it for transformers models.

    Args:
        tokenizer: Tokenizer of the model.
        add_bos: Begin each text with the beginning-of-sequence token, and condition the first token of a text on it;
            otherwise on the end-of-document token, which precedes a document in training.

    Raises:
        TokenizerError: `add_bos` is set, and the tokenizer has no beginning-of-sequence token.
    """

    def __init__(self, tokenizer: Tokenizer, *, add_bos: bool = False) -> None:
        self._tokenizer = tokenizer
        names = {token_id(tokenizer, name) for name in special_names(tokenizer)}
        self._special = {tokenizer.eod, *names}
        self._encodes_special_tokens = isinstance(unwrap_tokenizer(tokenizer), OffsetTokenizer)
        self.vocab_size = tokenizer.vocab_size
        self.eod = tokenizer.eod
        self.bos = begin_token(tokenizer) if add_bos else None
        if add_bos and self.bos is None:
            raise TokenizerError(
                "--bos: the tokenizer of the run has no beginning-of-sequence token. Leave out --bos, or set bos_token "
                "in the tokenizer_config.json of a new run."
            )
        self.fingerprint = tokenizer.fingerprint
        """Identifies the tokenizer in the cache of a harness."""

    @property
    def chat_template(self) -> str | None:
        """Template for conversations; None if the tokenizer carries none."""
        return chat_templates_of(self._tokenizer).select(has_tools=False)

    def encode(self, text: str, *, add_bos: bool = True) -> list[int]:
        """Return the ids of a text; special tokens in it are encoded as such if the tokenizer can.

        Args:
            text: The text.
            add_bos: Begin with the beginning-of-sequence token, if there is one and the text has none.
        """
        encodes = self._encodes_special_tokens
        ids = encode_chat(self._tokenizer, text)[0] if encodes else self._tokenizer.encode(text)
        return [self.bos, *ids] if add_bos and self.bos is not None and ids[:1] != [self.bos] else ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids without special tokens."""
        return self._tokenizer.decode([number for number in ids if number not in self._special])

    def render(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool) -> str:
        """Return the text of a conversation, as `render_prompt`."""
        return render_prompt(self._tokenizer, messages, add_generation_prompt=add_generation_prompt)
