"""Prompts of a model: text, or a conversation that a chat template renders up to the answer; texts of a harness."""

import json
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Any

from mb_data.chat.encoding import (
    OffsetTokenizer,
    begin_token,
    chat_templates_of,
    encode_chat,
    final_special,
    special_names,
)
from mb_data.chat.message_forms import readable_messages
from mb_data.chat.samples import compile_template
from mb_data.errors import TokenizerError
from mb_data.tokenizers.base import Tokenizer, token_id, unwrap_tokenizer


def encode_prompt(tokenizer: Tokenizer, prompt: str, *, chat: bool = False) -> tuple[str, list[int]]:
    """Return the text that the model continues, and its ids.

    Args:
        tokenizer: The tokenizer, for `chat` with a chat template.
        prompt: Text. For `chat`, the message of a user, or a JSON list of messages with role and content.
        chat: Render the conversation with the chat template, followed by the beginning of the answer.

    Raises:
        TokenizerError: The tokenizer has no chat template, or cannot encode its special tokens; or the prompt begins
            with `[{` and is not a list of messages.
        ChatTemplateError: The template rejects the conversation, or jinja2 is not installed (extra `chat`).
    """
    if not chat:
        return prompt, tokenizer.encode(prompt)
    text = render_prompt(tokenizer, _messages(prompt))
    return text, encode_chat(tokenizer, text)[0]


def render_prompt(
    tokenizer: Tokenizer, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True
) -> str:
    """Return the text of a conversation; `add_generation_prompt` adds the beginning of the answer.

    Raises:
        TokenizerError: The tokenizer has no chat template.
        ChatTemplateError: The template rejects the conversation, or jinja2 is not installed (extra `chat`).
    """
    templates = chat_templates_of(tokenizer)
    template = templates.select(has_tools=False)
    if template is None:
        raise TokenizerError(
            "--chat: the tokenizer of the run has no chat template. Set tokenizer.chat_template in a run, or leave out "
            "--chat and write the conversation as the model was trained on it."
        )
    render = partial(
        compile_template(template).render,
        tools=None,
        arguments=templates.special_tokens,
        add_generation_prompt=add_generation_prompt,
    )
    return str(render(readable_messages(messages, render=render)).text)


def end_of_answer(tokenizer: Tokenizer) -> int | None:
    """Return the special token with which the chat template ends an answer; None if it ends with other text.

    The end of a document need not be one that a model learns to generate after an answer.

    Raises:
        TokenizerError, ChatTemplateError: See `render_prompt`.
    """
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "a"}]
    name = final_special(tokenizer, render_prompt(tokenizer, turns, add_generation_prompt=False))
    return None if name is None else token_id(tokenizer, name)


def _messages(prompt: str) -> list[Mapping[str, Any]]:
    if not prompt.lstrip().startswith("[{"):
        return [{"role": "user", "content": prompt}]
    try:
        messages = json.loads(prompt)
    except ValueError as error:
        raise TokenizerError(f"--prompt: is not a JSON list of messages ({error}). Correct it.") from error
    if not all(isinstance(message, dict) and {"role", "content"} <= message.keys() for message in messages):
        raise TokenizerError("--prompt: each message needs role and content. Add them.")
    return list(messages)


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

    @cached_property
    def end_of_answer(self) -> int | None:
        """Special token with which the chat template ends an answer; errors are those of `end_of_answer`."""
        return end_of_answer(self._tokenizer)

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
