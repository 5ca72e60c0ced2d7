"""Length limits for texts in messages."""

from __future__ import annotations

MAX_VALUE_LENGTH = 200
"""Maximum number of characters of one value in a message."""

MAX_MESSAGE_LENGTH = 1_000
"""Maximum number of characters of the message about one field."""


def truncate(text: str, most: int = MAX_VALUE_LENGTH) -> str:
    """Return the text, or its beginning and end with the number of omitted characters."""
    if len(text) <= most:
        return text
    tail = most // 4
    head = most - tail
    return f"{text[:head]}... ({len(text) - most:,} more characters) ...{text[-tail:]}"


def truncate_repr(value: object, most: int = MAX_VALUE_LENGTH) -> str:
    """Return `repr(value)`, truncated."""
    if isinstance(value, str) and len(value) > 2 * most:
        return repr(truncate(value, most))
    try:
        return truncate(repr(value), most)
    except ValueError:  # Python prints integers of up to 4,300 digits
        return "an integer of thousands of digits"
