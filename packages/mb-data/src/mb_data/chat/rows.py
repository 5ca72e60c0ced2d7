"""Conversations in rows of fine-tuning data: `messages` of role and content, and ShareGPT's `conversations`."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from mb_data.errors import BadDocumentError
from mb_data.text.documents import require_encodable

ASSISTANT = "assistant"
_ROLES = ("system", "developer", "user", ASSISTANT, "tool", "ipython", "function")
_SENDERS = {
    **{name: name for name in _ROLES},
    "human": "user",
    "gpt": ASSISTANT,
    "chatgpt": ASSISTANT,
    "bot": ASSISTANT,
    "model": ASSISTANT,
    "observation": "tool",
    "function_response": "tool",
    "tool_response": "tool",
}
"""Names of senders in ShareGPT's form -> role."""
_CALL = "function_call"
_MARKS: Mapping[str, object] = {
    "weight": 1,
    **dict.fromkeys(("loss", "loss_mask", "train", "training", "trainable")),
}
"""Keys of other trainers for messages that are trained or not -> value that has no effect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Messages in the form that chat templates read, with the location of their row."""

    messages: Sequence[Mapping[str, Any]]
    tools: list[dict[str, Any]] | None
    location: str

    @property
    def answers(self) -> list[int]:
        """Positions of the messages of the assistant."""
        return [number for number, message in enumerate(self.messages) if message["role"] == ASSISTANT]


def parse_conversation(
    row: Mapping[str, Any], *, location: str, tools: list[dict[str, Any]] | None = None
) -> Conversation:
    """Return the conversation of a row, up to its last message of the assistant.

    Args:
        row: Values with `messages` or `conversations`, and optionally `system` and `tools`.
        location: File and line, for messages.
        tools: JSON schemas of tools for rows without `tools`.

    Raises:
        BadDocumentError: The row is not a conversation with a message of the assistant.
    """
    key = next((name for name in ("messages", "conversations") if row.get(name) is not None), None)
    if key is None:
        _reject(
            location,
            f"has neither messages nor conversations (found keys {', '.join(row) or 'none'})",
            'Write {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}',
        )
    entries = row[key]
    if not isinstance(entries, list):
        _reject(
            location,
            f"{key} is a {type(entries).__name__}, not a list",
            'Write a list of objects, such as {"role": "user", "content": "..."}',
        )
    messages = [
        _parse_message(entry, where=f"{key}[{number}]", location=location)
        for number, entry in enumerate(entries)
    ]
    system = row.get("system")
    if system and not (messages and messages[0]["role"] == "system"):
        messages.insert(0, _checked({"role": "system", "content": system}, where="system", location=location))
    answers = [number for number, message in enumerate(messages) if message["role"] == ASSISTANT]
    if not answers:
        _reject(location, "has no message of the assistant; there is nothing to train on", "Remove the line")
    row_tools = parse_tool_schemas(row.get("tools"), location=location)
    return Conversation(messages=messages[: answers[-1] + 1], tools=row_tools or tools, location=location)


def parse_tool_schemas(value: object, *, location: str) -> list[dict[str, Any]] | None:
    """Return tools from a list of JSON schemas, a single one, or either as JSON text; None if there is none.

    Raises:
        BadDocumentError: The value is none of these.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value) if value.strip() else None
        except ValueError:
            value = False  # no JSON: rejected below
    if value is None or value == []:
        return None
    schemas = [value] if isinstance(value, dict) else value
    if not isinstance(schemas, list) or not all(isinstance(schema, dict) for schema in schemas):
        _reject(
            location, "tools is not a list of JSON schemas", 'Write [{"type": "function", "function": {...}}]'
        )
    return schemas


def _parse_message(entry: object, *, where: str, location: str) -> dict[str, Any]:
    if not isinstance(entry, dict):
        _reject(
            location,
            f"{where} is a {type(entry).__name__}, not an object",
            'Write {"role": "user", "content": "..."}',
        )
    message = {name: value for name, value in entry.items() if value is not None}
    if "role" not in message and "from" in message:
        message = _from_share_gpt(message, where=where, location=location)
    return _checked(message, where=where, location=location)


def _from_share_gpt(entry: dict[str, Any], *, where: str, location: str) -> dict[str, Any]:
    """Return a message in the form of ShareGPT (`from`, `value`) as one of role and content, or of tool calls."""
    sender = str(entry["from"]).lower()
    other_fields = {name: value for name, value in entry.items() if name not in ("from", "value")}
    if sender == _CALL:
        return {
            "role": ASSISTANT,
            "tool_calls": _parse_call(entry.get("value"), where=where, location=location),
        }
    if sender not in _SENDERS:
        _reject(
            location,
            f"{where}.from is {entry['from']!r}, which is not a known sender",
            f"Write one of {', '.join((*_SENDERS, _CALL))}",
        )
    return {
        **other_fields,
        "role": _SENDERS[sender],
        **({"content": entry["value"]} if "value" in entry else {}),
    }


def _parse_call(value: object, *, where: str, location: str) -> list[dict[str, Any]]:
    try:
        call = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        call = None
    calls = call if isinstance(call, list) else [call]
    if not all(isinstance(call, dict) and "name" in call for call in calls):
        _reject(
            location,
            f"{where}.value is not the JSON of a function call",
            'Write {"name": "...", "arguments": {...}}',
        )
    return [{"type": "function", "function": call} for call in calls]


def _checked(message: dict[str, Any], *, where: str, location: str) -> dict[str, Any]:
    """Return a message unchanged if its role, weight and content are supported; reject it otherwise."""
    role, content = message.get("role"), message.get("content")
    if role not in _ROLES:
        _reject(
            location,
            f"{where}.role is {role!r}, which is not a known role",
            f"Write one of {', '.join(_ROLES)}",
        )
    reject_marks(message, where=where, location=location)
    if content is None and not (role == ASSISTANT and message.get("tool_calls")):
        _reject(location, f"{where} has no content", 'Write "content": "..."')
    texts = [content] if content is not None else []
    if isinstance(content, list):
        texts = [part.get("text") if isinstance(part, dict) else part for part in content]
    if not all(isinstance(text, str) for text in texts):
        _reject(
            location,
            f"{where}.content is neither a string nor a list of texts",
            'Write "content": "..."; images and sounds are not supported',
        )
    for text in texts:
        require_encodable(text, location=location)
    return message


def reject_marks(message: Mapping[str, Any], *, where: str, location: str) -> None:
    """Reject a message whose keys for other trainers exclude an answer from the loss, or include another message.

    Raises:
        BadDocumentError: It has such a key.
    """
    trained = message["role"] == ASSISTANT
    for name, without_effect in _MARKS.items():
        value = message.get(name)
        if value is not None and value not in (trained, without_effect):
            _reject(
                location,
                f"{where}.{name} is {value!r}; the loss covers all messages of the assistant, and no others",
                "Remove the key, or mark the trained text in the template with {% generation %}",
            )


def _reject(location: str, problem: str, fix: str) -> NoReturn:
    raise BadDocumentError(f"{location}: {problem}. {fix}.")
