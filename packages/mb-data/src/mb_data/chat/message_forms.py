"""Forms of messages: arguments of tool calls as objects or as JSON text, contents as texts or as lists of them.

Both forms of both are common in data, and each chat template reads one of them. With the other it prints escaped JSON
or the representation of a Python object, or fails.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from mb_data.errors import ChatTemplateError

Message = Mapping[str, Any]


def readable_messages(
    messages: Sequence[Message], *, render: Callable[[Sequence[Message]], Any]
) -> list[Message]:
    """Return the messages in the first form that a template reads; unchanged if they have one form alone.

    Args:
        messages: Messages with role and content.
        render: Renders messages by the template; the result has the `text`.

    Raises:
        ChatTemplateError: The template reads none.
    """
    forms = list(_forms(messages))
    if len(forms) == 1:
        return forms[0]
    errors: list[ChatTemplateError] = []
    for form in forms:
        try:
            text = render(form).text
        except ChatTemplateError as error:
            errors.append(error)
            continue
        if not any(wrong in text for message in form for wrong in _misread(message)):
            return form
    if errors:
        raise errors[0]
    raise ChatTemplateError(
        "the chat template prints the arguments of tool calls, or lists of texts, as Python objects or as escaped text "
        "instead of reading them. Write these messages as it expects them"
    )


def _forms(messages: Sequence[Message]) -> Iterator[list[Message]]:
    """Yield the messages with arguments as objects, which most templates read, and as text; then with joined texts."""
    seen: list[list[Message]] = []
    for joined in (False, True):
        for convert in (_as_object, _as_text):
            form = [_converted(message, convert, joined=joined) for message in messages]
            if form not in seen:
                seen.append(form)
                yield form


def _converted(message: Message, convert: Callable[[Any], Any], *, joined: bool) -> Message:
    changed = dict(message)
    if joined and isinstance(message.get("content"), list):
        parts = (part["text"] if isinstance(part, dict) else part for part in message["content"])
        changed["content"] = "".join(parts)
    if _functions(message):
        changed["tool_calls"] = [_with_arguments(call, convert) for call in message["tool_calls"]]
    return changed


def _with_arguments(call: Any, convert: Callable[[Any], Any]) -> Any:
    """Return a tool call with converted arguments; they are in `function`, or in the call itself."""
    if not isinstance(call, dict):
        return call
    if isinstance(call.get("function"), dict):
        return {**call, "function": _with_arguments(call["function"], convert)}
    return {**call, "arguments": convert(call["arguments"])} if "arguments" in call else call


def _functions(message: Message) -> list[dict[str, Any]]:
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return []
    functions = [call.get("function", call) for call in calls if isinstance(call, dict)]
    return [function for function in functions if isinstance(function, dict) and "arguments" in function]


def _as_object(arguments: Any) -> Any:
    try:
        decoded = json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return arguments
    return decoded if isinstance(decoded, dict) else arguments


def _as_text(arguments: Any) -> Any:
    return json.dumps(arguments, ensure_ascii=False) if isinstance(arguments, dict) else arguments


def _misread(message: Message) -> Iterator[str]:
    """Yield the texts that a template prints which does not read the form of a message."""
    values = [function["arguments"] for function in _functions(message)]
    if isinstance(message.get("content"), list):
        values.append(message["content"])
    for value in values:
        if not isinstance(value, str):
            yield from [str(value)] if value else []  # an empty object is the same text in JSON
        elif isinstance(_as_object(value), dict):
            yield from (repr(value), json.dumps(value, ensure_ascii=False), json.dumps(value))
