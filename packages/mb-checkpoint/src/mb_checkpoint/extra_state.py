"""What modules keep beside their weights, where a checkpoint holds none of it.

Transformer Engine's modules keep an entry each, empty but for 8-bit scales. Megatron's own layers and torch's norms
have fewer or none, so that what they stored, or what was imported, lacks entries that a GPU's layers ask for.
"""

import re
from collections.abc import Mapping
from typing import Any

from mb_checkpoint import mcore

NAME = re.compile(r"(.+\.)?_extra_state\d*")
"""Names of its entries: as torch calls it, with a number from the second of grouped experts on."""


def missing_entries(
    sections: Mapping[str, Any], contents: mcore.CheckpointContents
) -> dict[str, dict[str, Any]]:
    """Return, by section and name, this rank's extra state that a checkpoint lacks, with the values it has now.

    Args:
        sections: sharded weights of this rank.
        contents: of the checkpoint.
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
    """Count the modules whose extra state says something, as 8-bit scales do, and which the checkpoint knows not."""
    values = [value for entries in left.values() for value in entries.values()]
    return sum(value is not None and value.numel() > 0 for value in values)
