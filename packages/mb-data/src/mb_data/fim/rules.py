"""Rules for the sections of fill-in-the-middle data. Standard library only.

The rules do not apply to a dataset that lacks one of their fields, or whose first field is None.
"""

from typing import Any

from mb_schema.rule_kinds import dataset_rule, excludes, other_than
from mb_schema.rules import Rule, rules_in

FIM_PARTS = ("prefix", "middle", "suffix")
"""Parts of a document, and names of the special tokens that precede them."""

_FIM = "dataset.fim_data"
_NAMES = {"prefix": "<fim_prefix>", "middle": "<fim_middle>", "suffix": "<fim_suffix>"}


def _is_fraction(value: Any) -> bool:
    return value is not None and 0 <= value <= 1


@dataset_rule(
    "D91",
    why="they define the fraction of documents that are rewritten, and the fraction of these in SPM order",
    fix="Set both to values from 0 to 1, for example 0.5.",
    fails={"fim_data": True, "fim_rate": 0.5},
    passes={"fim_rate": 0.9, "fim_spm_rate": 0.5},
)
def _check_rates(fim_data, fim_rate, fim_spm_rate):
    fine = _is_fraction(fim_rate) and _is_fraction(fim_spm_rate)
    return f"fim_rate={fim_rate}, fim_spm_rate={fim_spm_rate}" if fim_data and not fine else None


@dataset_rule(
    "D92",
    why="a distinct special token precedes each of the three parts of a document",
    fix=f"Set the three names, for example {_NAMES}, and optionally pad and eod.",
    fails={"fim_data": True, "fim_extra_tokens": {"prefix": "<fim_prefix>"}},
    passes={"fim_extra_tokens": _NAMES},
)
def _check_tokens(fim_data, fim_extra_tokens):
    if not fim_data:
        return None
    tokens_by_part = fim_extra_tokens or {}
    marks = [tokens_by_part.get(part) for part in FIM_PARTS]
    fine = all(marks) and len(set(marks)) == len(marks) and set(tokens_by_part) <= {*FIM_PARTS, "pad", "eod"}
    return None if fine else f"{fim_extra_tokens}"


@dataset_rule(
    "D93",
    why="the first divides documents into fragments, the second is the fraction of these that are rewritten",
    fix="Set both, with a rate from 0 to 1, or neither.",
    fails={"fim_data": True, "fim_split_sample": "<file>"},
    passes={"fim_fragment_rate": 0.5},
)
def _check_fragments(fim_data, fim_split_sample, fim_fragment_rate):
    fine = (fim_split_sample is None and fim_fragment_rate is None) or (
        fim_split_sample and _is_fraction(fim_fragment_rate)
    )
    if fim_data and not fine:
        return f"fim_split_sample={fim_split_sample!r}, fim_fragment_rate={fim_fragment_rate}"
    return None


_FIXED = (
    (94, "inter_document_masking", False, "rewriting changes the lengths of documents"),
    (95, "add_extra_token_to_sequence", True, "the last label is a token of the rewritten text"),
    (96, "drop_last_partial_validation_sequence", True, "every sample keeps its length when it is rewritten"),
)
"""Fields of the GPT section with a fixed value: rule number, name, value, reason."""


RULES: tuple[Rule, ...] = (
    *rules_in(globals()),
    *(
        excludes(
            f"D{number}",
            {_FIM: True, f"dataset.{name}": other_than(value, None)},
            why=why,
            fix=f"Leave dataset.{name} unset.",
            fails={f"dataset.{name}": not value},
            passes={f"dataset.{name}": value},
        )
        for number, name, value, why in _FIXED
    ),
)
"""All rules for fill-in-the-middle data."""
