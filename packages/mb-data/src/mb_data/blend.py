"""How data paths, weights and split ratios are written, and what they mean.

Standard library only: the configuration checks use these functions before torch or Megatron is loaded.
"""

import math
import re
from collections.abc import Sequence
from itertools import pairwise

Blend = tuple[list[str], list[float] | None]
"""Prefixes of `.bin`/`.idx` pairs, and their weights (None: in proportion to their sizes)."""

SPLITS = ("train", "valid", "test")
"""The names of the three splits, in the order in which every triple in this package has them."""


def blend_from_path(data_path: str | Sequence[str]) -> Blend:
    """Read `data_path` as a blend.

    Args:
        data_path: One prefix, several separated by blanks, or a list; a list may interleave weights:
            `["30", "a", "70", "b"]`. As in Megatron-LM, an even number of entries is read as weights and
            prefixes when every first entry of a pair is a number.

    Raises:
        ValueError: It is empty, only some of the pairs start with a number, or a weight is not positive.
    """
    entries = data_path.split() if isinstance(data_path, str) else [str(entry).strip() for entry in data_path]
    if not entries:
        raise ValueError("dataset.data_path: is empty; give at least one prefix of a .bin/.idx pair")
    weights = [_parse_number(entry) for entry in entries[::2]]
    numbers = [weight for weight in weights if weight is not None]
    if len(entries) % 2 or not numbers:
        return entries, None
    if len(numbers) < len(weights):
        raise ValueError(
            f"dataset.data_path: {len(numbers)} of {len(weights)} prefixes have a weight ({' '.join(entries)}); "
            "a blend has a weight for every prefix or for none. Write WEIGHT PREFIX WEIGHT PREFIX ..., or no weight."
        )
    wrong = find_bad_weights(numbers)
    if wrong:
        raise ValueError(
            f"dataset.data_path: {wrong}; prefixes are drawn from in proportion. Give positive numbers."
        )
    return entries[1::2], numbers


def find_bad_weights(weights: Sequence[float]) -> str | None:
    """Say which weights are no positive, finite numbers; None when all are."""
    wrong = [weight for weight in weights if not (math.isfinite(weight) and weight > 0)]
    return f"weights that are not positive: {', '.join(map(str, wrong))}" if wrong else None


def split_matrix(split: str) -> list[tuple[float, float] | None]:
    """Turn a ratio string into the part of the documents that each split takes.

    Args:
        split: Up to three numbers that need not add up to one, such as `"90,5,5"`; missing ones are 0.

    Returns:
        For train, validation and test the half-open interval of [0, 1], or None where the ratio is 0.

    Raises:
        ValueError: There are more than three numbers, none, or they add up to nothing.
    """
    ratios = [float(number) for number in re.findall(r"\d*\.?\d+|\d+\.", split)]
    if re.sub(r"[\d.,\s]", "", split) or not 1 <= len(ratios) <= len(SPLITS) or sum(ratios) <= 0:
        raise ValueError(
            f"dataset.split: {split!r} is not one to three ratios with a positive sum. Write for example '90,5,5'."
        )
    ratios += [0.0] * (len(SPLITS) - len(ratios))
    total = sum(ratios)
    edges = [0.0]
    for ratio in ratios:
        edges.append(edges[-1] + ratio / total)
    return [(start, end) if end > start else None for start, end in pairwise(edges)]


def _parse_number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
