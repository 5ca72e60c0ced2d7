"""Parser of fine-tuning data: JSON lines to chat turns of a prompt and an answer.

A conversation is rendered as one line `role: content` for each message. The answer follows the assistant's role and is
followed by the end-of-document token.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonLine:
    """JSON object of a file, with its location."""

    values: Mapping[str, Any]
    location: str
    """File and line, for messages."""

    @property
    def is_conversation(self) -> bool:
        """True if the object has messages."""
        return "messages" in self.values


def parse_turns(
    line: JsonLine, options: FinetuningOptions, *, truncated: Mapping[str, str] | None = None
) -> list[ChatTurn]:
    """Return the turns of a conversation up to its last answer, or the single turn of a templated line.

    Args:
        line: Prompt and answer, or messages.
        options: The template.
        truncated: Replacements for the texts of `truncation_field`; None keeps the complete texts.

    Raises:
        BadDocumentError: A key of the template is missing or its value is not a string, a message lacks role or
            content, or a conversation has no message of the assistant.
    """
    if line.is_conversation:
        return _parse_conversation(line)
    texts = {key: _require_text(line, line.values.get(key), f"key {key!r}") for key in options.keys}
    texts |= truncated or {}
    before = options.prompt_template.removesuffix("{" + options.label_key + "}")
    return [ChatTurn(prompt=before.format(**texts), answer=texts[options.label_key])]


def _parse_conversation(line: JsonLine) -> list[ChatTurn]:
    messages = line.values["messages"]
    if not isinstance(messages, list):
        raise BadDocumentError(
            f"{line.location}: messages is not a list. Use a list of objects with role and content."
        )
    turns, prompt = [], ""
    for number, message in enumerate(messages):
        subject = f"message {number}"
        if not isinstance(message, dict) or message.get("role") not in _ROLES:
            raise BadDocumentError(
                f"{line.location}: {subject} has no role of {', '.join(_ROLES)}; the role decides what is trained on. "
                "Correct the line."
            )
        role, content = (
            message["role"],
            _require_text(line, message.get("content"), f"{subject} under 'content'"),
        )
        if role == ASSISTANT:
            turns.append(ChatTurn(prompt=f"{prompt}{role}:", answer=f" {content}"))
            prompt = ""
        else:
            prompt += f"{role}: {content}\n"
    if not turns:
        raise BadDocumentError(
            f"{line.location}: has no message of the assistant; there is nothing to train on. Remove the line."
        )
    return turns


def _require_text(line: JsonLine, value: object, subject: str) -> str:
    if not isinstance(value, str):
        found = "nothing" if value is None else f"a {type(value).__name__}"
        raise BadDocumentError(
            f"{line.location}: has {found} for {subject}, where a string is required (available keys: "
            f"{', '.join(line.values)}). Correct the line, or dataset_kwargs.prompt_template."
        )
    return require_encodable(value, location=line.location)
