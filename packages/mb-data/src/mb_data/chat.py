"""Lines of fine-tuning data as texts: what is said to the model, and what it answers.

A plain conversation reads `role: content`, a line for each message; what the assistant says follows its role, and ends
with the end of a document.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mb_data.errors import BadDocumentError
from mb_data.finetuning_options import FinetuningOptions

ASSISTANT = "assistant"
_ROLES = ("system", "user", ASSISTANT, "tool")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTurn:
    """A text that the model reads, and the text that it is to answer with."""

    prompt: str
    answer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonLine:
    """A JSON object of a file, and where it stands."""

    values: Mapping[str, Any]
    location: str
    """File and line, for messages."""

    @property
    def is_conversation(self) -> bool:
        """Whether it has messages."""
        return "messages" in self.values


def parse_line(content: bytes, *, location: str) -> JsonLine | None:
    """Read a line; None for an empty one.

    Raises:
        BadDocumentError: It is no JSON object in UTF-8.
    """
    if not content.strip():
        return None
    try:
        values = json.loads(content.decode())
    except ValueError as error:  # also what is not UTF-8
        raise BadDocumentError(
            f"{location}: is not JSON ({error}); every line is a sample. Correct the line."
        ) from error
    if not isinstance(values, dict):
        raise BadDocumentError(
            f"{location}: is a {type(values).__name__}; every line is a JSON object, with messages or with the keys of "
            "the template. Correct the line."
        )
    return JsonLine(values=values, location=location)


def parse_turns(
    line: JsonLine, options: FinetuningOptions, *, truncated: str | None = None
) -> list[ChatTurn]:
    """Return what is said in a line: the turns of a conversation up to its last answer, or a single one.

    Args:
        line: Prompt and answer, or messages.
        options: The template.
        truncated: Takes the place of the text that may be shortened; None: it is there whole.

    Raises:
        BadDocumentError: A key of the template is missing or no text; messages have no roles and contents, or nothing
            that the assistant says.
    """
    if line.is_conversation:
        return _parse_conversation(line)
    texts = {key: _require_text(line, line.values.get(key), f"key {key!r}") for key in options.keys}
    if truncated is not None:
        texts[options.truncation_field] = truncated
    before = options.prompt_template.removesuffix("{" + options.label_key + "}")
    return [ChatTurn(prompt=before.format(**texts), answer=texts[options.label_key])]


def _parse_conversation(line: JsonLine) -> list[ChatTurn]:
    messages = line.values["messages"]
    if not isinstance(messages, list):
        raise BadDocumentError(f"{line.location}: messages is no list. Give objects with role and content.")
    turns, prompt = [], ""
    for number, message in enumerate(messages):
        what = f"message {number}"
        if not isinstance(message, dict) or message.get("role") not in _ROLES:
            raise BadDocumentError(
                f"{line.location}: {what} has no role of {', '.join(_ROLES)}; who speaks decides what is learned. "
                "Correct the line."
            )
        role, content = (
            message["role"],
            _require_text(line, message.get("content"), f"{what} under 'content'"),
        )
        if role == ASSISTANT:
            turns.append(ChatTurn(prompt=f"{prompt}{role}:", answer=f" {content}"))
            prompt = ""
        else:
            prompt += f"{role}: {content}\n"
    if not turns:
        raise BadDocumentError(
            f"{line.location}: the assistant says nothing, so nothing is learned. Leave the line out."
        )
    return turns


def _require_text(line: JsonLine, value: object, what: str) -> str:
    if not isinstance(value, str):
        found = "nothing" if value is None else f"a {type(value).__name__}"
        raise BadDocumentError(
            f"{line.location}: has {found} for {what}, where a text is needed (it has the keys "
            f"{', '.join(line.values)}). Correct the line, or dataset_kwargs.prompt_template."
        )
    try:
        value.encode()
    except UnicodeEncodeError as error:  # an escape such as \ud83d without its other half
        raise BadDocumentError(
            f"{line.location}: has half a character ({error.reason} at {error.start}); no tokenizer takes it. "
            "Correct the line."
        ) from error
    return value
