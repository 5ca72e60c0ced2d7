"""Patterns of `peft.target_modules` and `peft.exclude_modules`. Standard library only.

A pattern is the last part of a module's name ("linear_proj"), or its full name with `*` for any text
("*.layers.0.*.linear_proj"), in which layers and experts have their numbers in the complete model, on every rank.
Canonical LoRA also selects the layers that Megatron fuses, by the name of the fused layer or of the part: linear_q,
linear_k and linear_v in linear_qkv, linear_fc1_gate and linear_fc1_up in linear_fc1.
"""

import difflib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from mb_models.errors import PeftError

CANONICAL_NAMES = {
    "linear_qkv": {"q": "linear_q", "k": "linear_k", "v": "linear_v"},
    "linear_fc1": {"gate": "linear_fc1_gate", "up": "linear_fc1_up"},
}
"""Fused layer -> part -> name of the part in canonical LoRA."""

MAIN = "main"
"""Key of the adapter of a layer that is adapted as one."""

SHOWN_NAMES = 24
"""Maximum number of names in an error message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateLayer:
    """A layer that can have adapters, on this rank."""

    path: str
    """Name in the chunk."""
    name: str
    """Name for patterns: layers and experts have their numbers in the complete model."""
    parts: Mapping[str, str]
    """Part -> last part of its name, for layers that are fused in it; or `MAIN` -> the layer's own name."""


def matches(pattern: str, name: str) -> bool:
    """Return whether a pattern selects a module, by its last part or by its full name."""
    leaf = name.rsplit(".", 1)[-1]
    text = ".*".join(re.escape(piece) for piece in pattern.split("*"))
    return leaf == pattern or re.fullmatch(text, name) is not None


def select(
    candidates: Iterable[CandidateLayer], *, targets: Sequence[str], exclude: Sequence[str]
) -> tuple[dict[str, tuple[str, ...]], set[str]]:
    """Return path -> parts to adapt, and the patterns that select a layer on this rank.

    Without targets, everything is adapted that no pattern of `exclude` selects.
    """
    patterns = targets or exclude
    chosen: dict[str, tuple[str, ...]] = {}
    used: set[str] = set()
    for candidate in candidates:
        stem = candidate.name.removesuffix(candidate.name.rsplit(".", 1)[-1])
        hits = {
            part: {
                pattern
                for pattern in patterns
                if matches(pattern, stem + leaf) or matches(pattern, candidate.name)
            }
            for part, leaf in candidate.parts.items()
        }
        used |= set().union(*hits.values())
        parts = tuple(part for part, matched in hits.items() if bool(matched) == bool(targets))
        if parts:
            chosen[candidate.path] = parts
    return chosen, used


def require_matches(
    patterns: Sequence[str], *, used: Collection[str], leaves: Collection[str], field: str, may_lack: bool
) -> list[str]:
    """Return the patterns that select no layer on any rank.

    Args:
        patterns: configured patterns.
        used: patterns that select a layer on some rank.
        leaves: last parts of the names of all layers that can have adapters, on any rank.
        field: path of the setting, for the message.
        may_lack: some patterns may select nothing, but not all: they are a default, which is for many models.

    Raises:
        PeftError: a pattern selects nothing.
    """
    unmatched = [pattern for pattern in patterns if pattern not in used]
    if not unmatched or (may_lack and len(unmatched) < len(patterns)):
        return unmatched
    nearest = sorted(leaves, key=lambda leaf: (-_likeness(unmatched[0], leaf), leaf))
    more = f", and {len(nearest) - SHOWN_NAMES} more" if len(nearest) > SHOWN_NAMES else ""
    available = ", ".join(nearest[:SHOWN_NAMES]) + more if nearest else "none at all"
    raise PeftError(
        f"{field}: {', '.join(unmatched)} match no layer of this model. Layers that can have adapters: {available}. "
        f"Use some of them, or remove {', '.join(unmatched)}."
    )


def _likeness(pattern: str, leaf: str) -> float:
    return difflib.SequenceMatcher(None, pattern.rsplit(".", 1)[-1].strip("*"), leaf).ratio()


def numbered(path: str, numbers: Mapping[str, int]) -> str:
    """Return a module's name with the numbers of layers and experts in the complete model, and without wrappers.

    Args:
        path: name in the chunk.
        numbers: name in the chunk of each transformer layer and expert -> its number in the complete model, from 0.
    """
    pieces = path.split(".")
    for end, piece in enumerate(path.split("."), start=1):
        number = numbers.get(".".join(path.split(".")[:end])) if piece.isdecimal() else None
        if number is not None:
            pieces[end - 1] = str(number)
    return ".".join(pieces).removeprefix("module.")
