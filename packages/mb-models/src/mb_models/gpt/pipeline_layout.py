"""Parser of pipeline layouts, which assign the parts of a model to stages, in Megatron Core's notation."""

import re
from collections.abc import Sequence

PARTS = {"E": "embedding", "t": "decoder", "m": "mtp", "L": "loss"}
"""Letter -> part of the model."""

MAX_PARTS = 10_000
"""Maximum number of parts after repetitions are expanded."""


def read_layout(layout: str | Sequence[Sequence[str]]) -> list[list[str]]:
    """Return the parts of every stage, virtual stages included, in the order of the model.

    In text form, | ends a stage, and `x*n` and `(...)*n` repeat: "Et*3|(tt|)*2mL".

    Raises:
        ValueError: the layout holds anything else.
    """
    if isinstance(layout, str):
        text = _repeated(_repeated(re.sub("[ ,]", "", layout), r"\(([^)]+)\)\*(\d+)"), r"(.)\*(\d+)")
        rows = [[PARTS.get(letter, letter) for letter in row] for row in text.split("|")]
    else:
        rows = [[part.strip().lower() for part in row] for row in layout]
    unknown = sorted({part for row in rows for part in row} - {*PARTS.values()})
    if unknown:
        raise ValueError(
            f"{layout!r} holds {', '.join(unknown)}, because a layout consists of {', '.join(PARTS.values())}, written "
            f"{', '.join(PARTS)} in text form. Correct it."
        )
    return rows


def _repeated(text: str, pattern: str) -> str:
    """Expand the repetitions that a pattern matches: its first group as many times as its second."""
    times = [(part, int(number) if len(number) < 10 else 10**9) for part, number in re.findall(pattern, text)]
    parts = sum(len(part) * number for part, number in times)
    if parts > MAX_PARTS:
        raise ValueError(
            f"{text!r} repeats {parts:,} parts or more, because a text is expanded before it is parsed, up to "
            f"{MAX_PARTS:,}. Correct it."
        )
    return re.sub(pattern, lambda match: match[1] * int(match[2]), text)
