"""Prompts of a model: text, or a conversation that a chat template renders up to the answer."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from mb_data.chat.encoding import chat_templates_of, encode_chat
from mb_data.chat.samples import compile_template
from mb_data.errors import TokenizerError
from mb_data.tokenizers.base import Tokenizer


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
    rendered = compile_template(template).render(
        messages,
        tools=None,
        arguments=templates.special_tokens,
        add_generation_prompt=add_generation_prompt,
    )
    return str(rendered.text)


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
