"""Rules for the sections of fill-in-the-middle data. Standard library only.

The rules do not apply to a dataset that lacks one of their fields, or whose first field is None.
"""

from typing import Any

from mb_schema.rule_kinds import excludes, other_than, rule
from mb_schema.rules import Rule

FIM_PARTS = ("prefix", "middle", "suffix")
"""Parts of a document, and names of the special tokens that precede them."""

_FIM = "dataset.fim_data"
_RATES = (_FIM, "dataset.fim_rate", "dataset.fim_spm_rate")
_FRAGMENTS = (_FIM, "dataset.fim_split_sample", "dataset.fim_fragment_rate")
_NAMES = {"prefix": "<fim_prefix>", "middle": "<fim_middle>", "suffix": "<fim_suffix>"}


def _is_fraction(value: Any) -> bool:
    return value is not None and 0 <= value <= 1


def _check_rates(fim: Any, rate: Any, spm_rate: Any) -> str | None:
    fine = _is_fraction(rate) and _is_fraction(spm_rate)
    return f"fim_rate={rate}, fim_spm_rate={spm_rate}" if fim and not fine else None


def _check_tokens(fim: Any, names: Any) -> str | None:
    if not fim:
        return None
    tokens_by_part = names or {}
    marks = [tokens_by_part.get(part) for part in FIM_PARTS]
    fine = all(marks) and len(set(marks)) == len(marks) and set(tokens_by_part) <= {*FIM_PARTS, "pad", "eod"}
    return None if fine else f"{names}"


def _check_fragments(fim: Any, split: Any, rate: Any) -> str | None:
    fine = (split is None and rate is None) or (split and _is_fraction(rate))
    return f"fim_split_sample={split!r}, fim_fragment_rate={rate}" if fim and not fine else None


_FIXED = (
    (94, "inter_document_masking", False, "rewriting changes the lengths of documents"),
    (95, "add_extra_token_to_sequence", True, "the last label is a token of the rewritten text"),
    (96, "drop_last_partial_validation_sequence", True, "every sample keeps its length when it is rewritten"),
)
"""Fields of the GPT section with a fixed value: rule number, name, value, reason."""


RULES: tuple[Rule, ...] = (
    rule(
        "D91",
        _RATES,
        _check_rates,
        why="they define the fraction of documents that are rewritten, and the fraction of these in SPM order",
        fix="Set both to values from 0 to 1, for example 0.5.",
        fails=(True, 0.5, None),
        passes=(True, 0.9, 0.5),
    ),
    rule(
        "D92",
        (_FIM, "dataset.fim_extra_tokens"),
        _check_tokens,
        why="a distinct special token precedes each of the three parts of a document",
        fix=f"Set the three names, for example {_NAMES}, and optionally pad and eod.",
        fails=(True, {"prefix": "<fim_prefix>"}),
        passes=(True, _NAMES),
    ),
    rule(
        "D93",
        _FRAGMENTS,
        _check_fragments,
        why="the first divides documents into fragments, the second is the fraction of these that are rewritten",
        fix="Set both, with a rate from 0 to 1, or neither.",
        fails=(True, "<file>", None),
        passes=(True, "<file>", 0.5),
    ),
    *(
        excludes(
            f"D{number}",
            {_FIM: True, f"dataset.{name}": other_than(value, None)},
            why=why,
            fix=f"Leave dataset.{name} unset.",
            fails=(True, not value),
            passes=(True, value),
        )
        for number, name, value, why in _FIXED
    ),
)
"""All rules for fill-in-the-middle data."""
