"""Names of the layers that `peft.target_modules` and `peft.exclude_modules` select. Standard library only.

A pattern is the last part of a module's name ("linear_proj"), or its whole name with `*` for any text
("*.layers.0.*.linear_proj"), in which layers and experts have their numbers in the whole model, on every rank.
Canonical LoRA also selects the layers that Megatron fuses, by the name of the fused one or their own: linear_q,
linear_k and linear_v in linear_qkv, linear_fc1_gate and linear_fc1_up in linear_fc1.
"""

import difflib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from mb_models.peft.config import PeftError

MAIN = "main"
"""Key of the adapter of a layer that is adapted in one piece."""

SHOWN_NAMES = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateLayer:
    """A layer that can have adapters, on this rank."""

    path: str
    """Name in the chunk."""
    name: str
    """Name by which patterns find it: layers and experts have their numbers in the whole model."""
    parts: Mapping[str, str]
    """Part -> last part of its name: the layers that are fused in it, or `MAIN` -> its own."""


def matches(pattern: str, name: str) -> bool:
    """Whether a pattern selects a module, by its last part or by its whole name."""
    leaf = name.rsplit(".", 1)[-1]
    text = ".*".join(re.escape(piece) for piece in pattern.split("*"))
    return leaf == pattern or re.fullmatch(text, name) is not None


def select(
    candidates: Iterable[CandidateLayer], *, targets: Sequence[str], exclude: Sequence[str]
) -> tuple[dict[str, tuple[str, ...]], set[str]]:
    """Return path -> parts to adapt, and the patterns that select something on this rank.

    Without targets, everything is adapted that no pattern of `exclude` selects.
    """
    patterns = targets or exclude
    chosen: dict[str, tuple[str, ...]] = {}
    used: set[str] = set()
    for candidate in candidates:
        stem = candidate.name.removesuffix(candidate.name.rsplit(".", 1)[-1])
        hits = {
            part: {each for each in patterns if matches(each, stem + leaf) or matches(each, candidate.name)}
            for part, leaf in candidate.parts.items()
        }
        used |= set().union(*hits.values())
        parts = tuple(part for part, found in hits.items() if bool(found) == bool(targets))
        if parts:
            chosen[candidate.path] = parts
    return chosen, used


def require_matches(
    patterns: Sequence[str], *, used: Collection[str], leaves: Collection[str], field: str, may_lack: bool
) -> list[str]:
    """Return the patterns that select nothing on any rank.

    Args:
        patterns: What was asked for.
        used: Patterns that select something on any rank.
        leaves: Last parts of the names of all layers that can have adapters, on any rank.
        field: Path of the setting, for the message.
        may_lack: Some may select nothing, but not all: they are the default of a section, which is for many models.

    Raises:
        PeftError: A pattern selects nothing.
    """
    unmatched = [pattern for pattern in patterns if pattern not in used]
    if not unmatched or (may_lack and len(unmatched) < len(patterns)):
        return unmatched
    nearest = sorted(leaves, key=lambda leaf: (-_likeness(unmatched[0], leaf), leaf))
    more = f", and {len(nearest) - SHOWN_NAMES} more" if len(nearest) > SHOWN_NAMES else ""
    there = ", ".join(nearest[:SHOWN_NAMES]) + more if nearest else "none at all"
    raise PeftError(
        f"{field}: {', '.join(unmatched)} match no layer of this model. It has these that can have adapters: {there}. "
        f"Name some of them, or leave {', '.join(unmatched)} out."
    )


def _likeness(pattern: str, leaf: str) -> float:
    return difflib.SequenceMatcher(None, pattern.rsplit(".", 1)[-1].strip("*"), leaf).ratio()


def numbered(path: str, numbers: Mapping[str, int]) -> str:
    """Return a module's name with the numbers of layers and experts in the whole model, and without wrappers.

    Args:
        path: Name in the chunk.
        numbers: Name in the chunk of each transformer layer and expert -> its number in the whole model, from 0.
    """
    pieces = path.split(".")
    for end, piece in enumerate(path.split("."), start=1):
        number = numbers.get(".".join(path.split(".")[:end])) if piece.isdecimal() else None
        if number is not None:
            pieces[end - 1] = str(number)
    return ".".join(pieces).removeprefix("module.")
