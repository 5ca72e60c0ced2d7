"""Rows of files of JSON lines, which a kill cuts short and which may come from elsewhere."""

import json
import math
from collections.abc import Mapping
from typing import Any

LONGEST = 1 << 22
"""Bytes of the longest line; metrics and events have a few thousand."""
DEEPEST = 64
"""Levels of the deepest row."""
_LARGEST = 2**63
NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
"""Numbers that JSON does not support, and their text in a row."""


def parse_row(line: bytes | str) -> dict[str, Any] | None:
    """Return the object in a line; None if the line is none, is cut short, or is of absurd depth or size."""
    if len(line) > LONGEST:
        return None
    try:
        row = json.loads(line)
    except (
        ValueError,
        RecursionError,
    ):  # ValueError: also numbers of thousands of digits, and other encodings
        return None
    return row if isinstance(row, dict) and _is_shallow(row) else None


def step_of_row(row: Mapping[str, Any]) -> int | None:
    """Return the step of a row; None if it has none that 64 bits hold."""
    step = row.get("step")
    return step if type(step) is int and -_LARGEST <= step < _LARGEST else None


def plain_number(value: float) -> float | str:
    """Return a number as JSON can hold it: NaN and infinity as text."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def number_of(raw: object) -> float | None:
    """Return the number that a row has, also as the text of `plain_number`; None if it is none."""
    if isinstance(raw, str):
        return NOT_FINITE.get(raw)
    try:
        return float(raw) if isinstance(raw, int | float) else None
    except OverflowError:  # an integer of hundreds of digits
        return None


def _is_shallow(row: Any) -> bool:
    """Return whether the objects and lists of a row are nested in at most `DEEPEST` levels."""
    level = [row]
    for _ in range(DEEPEST):
        below: list[Any] = []
        for container in level:
            items = container.values() if isinstance(container, dict) else container
            below += [item for item in items if isinstance(item, dict | list)]
        if not below:
            return True
        level = below
    return False
