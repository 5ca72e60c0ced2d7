"""What lines of logs have in common: colours, prefixes, time stamps, numbers, and being broken."""

import math
import re
from datetime import datetime
from enum import Enum

_COLOURS = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_STAMP = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?")
_NUMBER = re.compile(
    r"\s*([-+]?(?:\d[\d,]*\.?\d*(?:[eE][-+]?\d+)?|\.\d+|nan|inf(?:inity)?))\s*", re.IGNORECASE
)

SKIPPED_STEPS = "interval/skipped-steps"
"""Metric of a row that stands for an interval: how many of its steps the optimizer skipped."""
NONFINITE_STEPS = "interval/nan-steps"
"""Metric of a row that stands for an interval: how many of its steps had a NaN or infinite loss."""


class LineDefect(Enum):
    """A line that was meant to be read and cannot be."""

    CUT = "cut"
    """Its end is missing."""
    MALFORMED = "malformed"
    """A value in it is not what it should be."""


def without_colours(text: str) -> str:
    """Return the text without the sequences that colour a terminal."""
    return _COLOURS.sub("", text) if "\x1b" in text else text


def last_stamp(text: str) -> float:
    """Return the last time stamp of a text, read as local time, in seconds since the epoch; NaN if it has none."""
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
    """Return the number that a text is, with or without commas between thousands; None if it is something else."""
    match = _NUMBER.fullmatch(text)
    return float(match[1].replace(",", "")) if match else None
