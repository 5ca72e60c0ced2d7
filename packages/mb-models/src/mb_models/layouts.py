"""Pipeline layouts: which parts of a model each stage holds, written as Megatron Core reads them."""

import re
from collections.abc import Sequence

PARTS = {"E": "embedding", "t": "decoder", "m": "mtp", "L": "loss"}
"""Letter -> the part that it stands for."""


def read_layout(layout: str | Sequence[Sequence[str]]) -> list[list[str]]:
    """Return the parts of every stage, virtual ones too, in the order of the model.

    In a text a bar ends a stage, and `x*n` and `(...)*n` repeat: "Et*3|(tt|)*2mL".

    Raises:
        ValueError: there is something else in it.
    """
    if isinstance(layout, str):
        text = re.sub(
            r"\(([^)]+)\)\*(\d+)", lambda found: found[1] * int(found[2]), re.sub("[ ,]", "", layout)
        )
        text = re.sub(r"(.)\*(\d+)", lambda found: found[1] * int(found[2]), text)
        rows = [[PARTS.get(letter, letter) for letter in row] for row in text.split("|")]
    else:
        rows = [[part.strip().lower() for part in row] for row in layout]
    unknown = sorted({part for row in rows for part in row} - {*PARTS.values()})
    if unknown:
        raise ValueError(
            f"{layout!r} holds {', '.join(unknown)}, because a layout consists of {', '.join(PARTS.values())}, written "
            f"{', '.join(PARTS)} in a text. Correct it."
        )
    return rows
