"""Parser of fine-tuning data: JSON lines to chat turns of a prompt and an answer.

A conversation is rendered as one line `role: content` for each message. The answer follows the assistant's role and is
followed by the end-of-document token.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mb_data.chat.rows import reject_marks
from mb_data.errors import BadDocumentError
from mb_data.finetuning.options import FinetuningOptions
from mb_data.text.documents import require_encodable

ASSISTANT = "assistant"
_ROLES = ("system", "user", ASSISTANT, "tool")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTurn:
    """Prompt that the model reads, and the answer that it is trained to generate."""

    prompt: str
    answer: str


def is_conversation(row: Mapping[str, Any]) -> bool:
    """Return True if a row has messages."""
    return "messages" in row


def parse_turns(
    row: Mapping[str, Any],
    options: FinetuningOptions,
    *,
    location: str,
    truncated: Mapping[str, str] | None = None,
) -> list[ChatTurn]:
    """Return the turns of a conversation up to its last answer, or the single turn of a templated line.

    Args:
        row: Prompt and answer, or messages.
        options: The template.
        location: File and line, for messages.
        truncated: Replacements for the texts of `truncation_field`; None keeps the complete texts.

    Raises:
        BadDocumentError: A key of the template is missing or its value is not a string, a message lacks role or
            content, or a conversation has no message of the assistant.
    """
    if is_conversation(row):
        return _parse_conversation(row, location)
    texts = {key: _require_text(row, row.get(key), f"key {key!r}", location) for key in options.keys}
    texts |= truncated or {}
    before = options.prompt_template.removesuffix("{" + options.label_key + "}")
    return [ChatTurn(prompt=before.format(**texts), answer=texts[options.label_key])]


def _parse_conversation(row: Mapping[str, Any], location: str) -> list[ChatTurn]:
    """Return a turn for each message of the assistant: all messages since the previous one are its prompt.

    Raises:
        BadDocumentError: A message has no known role or no text, or none is of the assistant.
    """
    messages = row["messages"]
    if not isinstance(messages, list):
        raise BadDocumentError(
            f"{location}: messages is not a list. Use a list of objects with role and content."
        )
    turns, prompt = [], ""
    for number, message in enumerate(messages):
        subject = f"message {number}"
        if not isinstance(message, dict) or message.get("role") not in _ROLES:
            raise BadDocumentError(
                f"{location}: {subject} has no role of {', '.join(_ROLES)}; the role decides what is trained on. "
                "Correct the line."
            )
        role = message["role"]
        reject_marks(message, where=f"messages[{number}]", location=location)
        if message.get("tool_calls"):
            raise BadDocumentError(
                f"{location}: {subject} has tool_calls, which only a chat template renders. Set "
                "dataset.dataset_kwargs.chat=true, or write the call into the content."
            )
        content = _require_text(row, message.get("content"), f"{subject} under 'content'", location)
        if role == ASSISTANT:
            turns.append(ChatTurn(prompt=f"{prompt}{role}:", answer=f" {content}"))
            prompt = ""
        else:
            prompt += f"{role}: {content}\n"
    if not turns:
        raise BadDocumentError(
            f"{location}: has no message of the assistant; there is nothing to train on. Remove the line."
        )
    return turns


def _require_text(row: Mapping[str, Any], value: object, subject: str, location: str) -> str:
    if not isinstance(value, str):
        found = "nothing" if value is None else f"a {type(value).__name__}"
        raise BadDocumentError(
            f"{location}: has {found} for {subject}, where a string is required (available keys: "
            f"{', '.join(row)}). Correct the line, or dataset_kwargs.prompt_template."
        )
    return require_encodable(value, location=location)
