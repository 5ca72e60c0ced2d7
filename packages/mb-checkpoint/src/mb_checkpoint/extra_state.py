"""Extra state of modules (`_extra_state`) that a checkpoint does not hold.

Modules of Transformer Engine have one such entry each, which is empty except for 8-bit scales. Megatron's own layers
and torch's norms have fewer or none, so that checkpoints written by them, or imported ones, lack entries that the
layers on a GPU request.
"""

import re
from collections.abc import Mapping
from typing import Any

from mb_checkpoint import mcore

NAME = re.compile(r"(.+\.)?_extra_state\d*")
"""Names of extra-state entries: torch's name, with a number for the second and later of grouped experts."""


def missing_entries(
    sections: Mapping[str, Any], contents: mcore.CheckpointContents
) -> dict[str, dict[str, Any]]:
    """Return, by section and name, the extra state of this rank that a checkpoint lacks, with its current values.

    Args:
        sections: Sharded weights of this rank.
        contents: Contents of the checkpoint.
    """
    stored = mcore.entries_in_checkpoint(sections, contents)
    return {
        section: {
            name: entry.data
            for name, entry in entries.items()
            if NAME.fullmatch(name) and name not in stored[section]
        }
        for section, entries in sections.items()
    }


def without_entries(sections: Mapping[str, Any], left: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the sections without the entries of `left`."""
    return {
        section: {name: entry for name, entry in entries.items() if name not in left[section]}
        for section, entries in sections.items()
    }


def count_nonempty(left: Mapping[str, Mapping[str, Any]]) -> int:
    """Count the entries with a value, such as 8-bit scales, that the checkpoint lacks."""
    values = [value for entries in left.values() for value in entries.values()]
    return sum(value is not None and value.numel() > 0 for value in values)
