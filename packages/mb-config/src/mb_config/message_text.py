"""Length limits of texts in messages."""

from __future__ import annotations

VALUE = 200
"""Characters of one value in a message."""

MESSAGE = 1_000
"""Characters of the message about one field."""


def cut(text: str, most: int = VALUE) -> str:
    """Return the text, or its beginning and end with the number of characters between them."""
    if len(text) <= most:
        return text
    tail = most // 4
    head = most - tail
    return f"{text[:head]}... ({len(text) - most:,} more characters) ...{text[-tail:]}"


def cut_repr(value: object, most: int = VALUE) -> str:
    """Return `repr(value)`, cut."""
    if isinstance(value, str) and len(value) > 2 * most:
        return repr(cut(value, most))
    try:
        return cut(repr(value), most)
    except ValueError:  # Python prints integers of up to 4,300 digits
        return "an integer of thousands of digits"
