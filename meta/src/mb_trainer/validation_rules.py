"""Rules on validation sets: which sets each kind of data supports, and their names. No torch."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mb_data import blend_from_path
from mb_trainer.rules import Rule

SEVERAL = "validation.multiple_validation_sets"
WHOLE = "validation.full_validation"
NAMES = "validation.validation_set_names"
PATHS = ("dataset.blend", "dataset.data_path", "dataset.blend_per_split")
TOKENS = "dataset.mmap_bin_files"
"""Field of token sections that dataset providers lack."""


def validation_prefixes(blend: Any, data_path: Any, blend_per_split: Any) -> list[str]:
    """Return the prefixes of the validation data; none if it is not read from prefixes.

    Raises:
        ValueError: `data_path` cannot be read as a blend.
    """
    if blend_per_split is not None:
        blend = blend_per_split[1]
    elif blend is None and data_path is not None:
        blend = blend_from_path(data_path)
    return [] if blend is None else [str(prefix) for prefix in blend[0]]


def last_parts(prefixes: Sequence[str]) -> list[str]:
    """Return the default names of the sets, which are the last parts of their prefixes."""
    return [Path(prefix).name for prefix in prefixes]


def _known_prefixes(*paths: Any) -> list[str] | None:
    """Return the prefixes; None for malformed paths, which rules of the dataset reject."""
    try:
        return validation_prefixes(*paths)
    except (IndexError, TypeError, ValueError):
        return None


def _needs_prefixes(several: bool | None, tokens: bool | None, *paths: Any) -> str | None:
    if not several or tokens is None:
        return None
    return "is true, but the validation data has no prefixes" if _known_prefixes(*paths) == [] else None


def _needs_a_name_each(
    names: list[str] | None, several: bool | None, tokens: bool | None, *paths: Any
) -> str | None:
    prefixes = _known_prefixes(*paths) if several and tokens is not None else None
    if not prefixes:
        return None
    if names is None:
        twice = [name for name, number in Counter(last_parts(prefixes)).items() if number > 1]
        return f"is null, and {', '.join(prefixes)} end alike ({', '.join(twice)})" if twice else None
    if len(names) == len(prefixes):
        return None
    return f"{len(names)} names ({', '.join(names)}) for {len(prefixes)} prefixes ({', '.join(prefixes)})"


def _needs_an_end(whole: bool | None, tokens: bool | None) -> str | None:
    return "is true, but this data has no last validation sample" if whole and tokens is None else None


VALIDATION_RULES = (
    Rule(
        id="T33",
        fields=(SEVERAL, TOKENS, *PATHS),
        test=_needs_prefixes,
        why="each prefix of the validation data is a set of its own; a text corpus and generated tokens are one",
        fix=f"Leave {SEVERAL} off, or build the sets (mb data build) and name them in dataset.blend_per_split.",
        fails={SEVERAL: True, TOKENS: True, "dataset.blend": None},
        passes={SEVERAL: True, TOKENS: True, "dataset.blend": [["data/a", "data/b"], None]},
    ),
    Rule(
        id="T34",
        fields=(NAMES, SEVERAL, TOKENS, *PATHS),
        test=_needs_a_name_each,
        why="the losses of the sets are told apart by these names, or else by the last parts of the prefixes",
        fix=f"Give {NAMES} one name for each prefix, in their order.",
        fails={NAMES: ["books"], SEVERAL: True, TOKENS: True, "dataset.blend": [["data/a", "data/b"], None]},
        passes={
            NAMES: ["books", "web"],
            SEVERAL: True,
            TOKENS: True,
            "dataset.blend": [["data/a", "data/b"], None],
        },
    ),
    Rule(
        id="T35",
        fields=(WHOLE, TOKENS),
        test=_needs_an_end,
        why="nothing says where the validation set ends: a dataset provider makes as many samples as it is asked for, "
        "and the lines of fine-tuning data are read again and again",
        fix=f"Leave {WHOLE} off, and set validation.eval_iters.",
        fails={WHOLE: True, TOKENS: None},
        passes={WHOLE: True, TOKENS: True},
    ),
)
"""Rules that reject validation options which the data does not support."""
