"""Rules on validation sets: which sets each kind of data supports, and their names. Standard library only."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mb_data.megatron.blend import blend_from_path
from mb_schema.rule_kinds import dataset_rule, shown, validation_rule
from mb_schema.rules import rules_in


def validation_prefixes(blend: Any, data_path: Any, blend_per_split: Any) -> list[str]:
    """Return the prefixes of the validation data; none if it is not read from prefixes.

    Raises:
        BlendError: `data_path` cannot be parsed as a blend.
    """
    if blend_per_split is not None:
        blend = blend_per_split[1]
    elif blend is None and data_path is not None:
        blend = blend_from_path(data_path)
    return [] if blend is None else [str(prefix) for prefix in blend[0]]


def last_parts(prefixes: Sequence[str]) -> list[str]:
    """Return the default names of the sets, which are the last parts of their prefixes."""
    return [Path(prefix).name for prefix in prefixes]


def _valid_prefixes(blend: Any, data_path: Any, blend_per_split: Any) -> list[str] | None:
    """Return the prefixes; None for malformed paths, which rules of the dataset reject."""
    try:
        return validation_prefixes(blend, data_path, blend_per_split)
    except (IndexError, TypeError, ValueError):
        return None


@dataset_rule(
    "T15",
    why="this option is not implemented; ignoring it silently would hide the problem until the run is in progress",
    fix="Leave it unset and use validation.full_validation.",
    fails={"full_validation": True},
    passes={"full_validation": None, "validation__full_validation": True},
)
def _set_in_the_dataset(full_validation, validation__full_validation):
    """Reject the field in a run, whose validation section has it. A dataset section that is used alone may set it."""
    return None if full_validation is None else f"is not supported (full_validation={shown(full_validation)})"


@validation_rule(
    "T33",
    why="each prefix of the validation data is a separate set; a text corpus and generated tokens are one set",
    fix="Leave validation.multiple_validation_sets off, or build the sets (mb data build) and set their prefixes in "
    "dataset.blend_per_split.",
    fails={"multiple_validation_sets": True, "dataset__mmap_bin_files": True},
    passes={"dataset__blend": [["data/a", "data/b"], None]},
)
def _several_sets_without_prefixes(
    multiple_validation_sets,
    dataset__mmap_bin_files,
    dataset__blend,
    dataset__data_path,
    dataset__blend_per_split,
):
    if not multiple_validation_sets or dataset__mmap_bin_files is None:  # other datasets lack the field
        return None
    prefixes = _valid_prefixes(dataset__blend, dataset__data_path, dataset__blend_per_split)
    return "is true, but the validation data has no prefixes" if prefixes == [] else None


@validation_rule(
    "T34",
    why="the losses of the sets are reported under these names, by default the last parts of the prefixes",
    fix="Give validation.validation_set_names one name for each prefix, in their order.",
    fails={
        "validation_set_names": ["books"],
        "multiple_validation_sets": True,
        "dataset__mmap_bin_files": True,
        "dataset__blend": [["data/a", "data/b"], None],
    },
    passes={"validation_set_names": ["books", "web"]},
)
def _not_one_name_per_set(
    validation_set_names,
    multiple_validation_sets,
    dataset__mmap_bin_files,
    dataset__blend,
    dataset__data_path,
    dataset__blend_per_split,
):
    if not multiple_validation_sets or dataset__mmap_bin_files is None:  # other datasets lack the field
        return None
    names = validation_set_names
    prefixes = _valid_prefixes(dataset__blend, dataset__data_path, dataset__blend_per_split)
    if not prefixes:
        return None
    if names is None:
        repeated = [name for name, number in Counter(last_parts(prefixes)).items() if number > 1]
        if not repeated:
            return None
        return f"is null, and {', '.join(prefixes)} have the same last part ({', '.join(repeated)})"
    if len(names) == len(prefixes):
        return None
    return f"{len(names)} names ({', '.join(names)}) for {len(prefixes)} prefixes ({', '.join(prefixes)})"


@validation_rule(
    "T35",
    why="the length of the validation set is not known: a dataset provider builds as many samples as are "
    "requested",
    fix="Leave validation.full_validation off, and set validation.eval_iters.",
    fails={"full_validation": True},
    passes={"dataset__mmap_bin_files": True},
)
def _validation_without_end(full_validation, dataset__mmap_bin_files, dataset__made_up):
    endless = dataset__mmap_bin_files is None and dataset__made_up is None
    return "is true, but this data has no last validation sample" if full_validation and endless else None


RULES = rules_in(globals())
"""Rules that reject validation options which the data does not support."""
