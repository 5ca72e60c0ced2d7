"""Length limits for texts in messages."""

from __future__ import annotations

from mb_schema.rules import MAX_MESSAGE_LENGTH as MAX_MESSAGE_LENGTH
from mb_schema.rules import MAX_VALUE_LENGTH as MAX_VALUE_LENGTH
from mb_schema.rules import truncate as truncate


def truncate_repr(value: object) -> str:
    """Return `repr(value)`, truncated."""
    if isinstance(value, str) and len(value) > 2 * MAX_VALUE_LENGTH:
        return repr(truncate(value))
    try:
        return truncate(repr(value))
    except ValueError:  # Python prints integers of up to 4,300 digits
        return "an integer of thousands of digits"
