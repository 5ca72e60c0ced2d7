"""Common elements of log lines: terminal colours, prefixes, time stamps, numbers, and defects."""

import math
import re
from datetime import datetime
from enum import Enum

_COLOURS = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_STAMP = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?")
_NUMBER = re.compile(
    r"\s*([-+]?(?:(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+|nan|inf(?:inity)?))\s*",
    re.IGNORECASE,
)

SKIPPED_STEPS = "interval/skipped-steps"
"""Metric of a row that represents an interval: number of steps that the optimizer skipped."""
NONFINITE_STEPS = "interval/nan-steps"
"""Metric of a row that represents an interval: number of steps with a NaN or infinite loss."""


class LineDefect(Enum):
    """Defect of a line in a known format that cannot be parsed."""

    CUT = "cut"
    """The end of the line is missing."""
    MALFORMED = "malformed"
    """A value in the line is invalid."""


def without_colours(text: str) -> str:
    """Return the text without terminal escape sequences."""
    return _COLOURS.sub("", text) if "\x1b" in text else text


def last_stamp(text: str) -> float:
    """Return the last time stamp of a text, as local time, in seconds since the epoch; NaN if there is none."""
    stamps = _STAMP.findall(text)
    if not stamps:
        return math.nan
    day, clock, fraction = stamps[-1]
    try:
        seconds = datetime.strptime(f"{day} {clock}", "%Y-%m-%d %H:%M:%S").timestamp()
    except (ValueError, OverflowError, OSError):  # a number that looks like a date
        return math.nan
    return seconds + float(f"0.{fraction or 0}")


def number(text: str) -> float | None:
    """Parse a number with or without thousands separators; return None for other texts, such as a decimal comma."""
    match = _NUMBER.fullmatch(text)
    return float(match[1].replace(",", "")) if match else None
