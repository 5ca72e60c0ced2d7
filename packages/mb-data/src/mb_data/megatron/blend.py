"""Parsers for data paths with weights, and for split ratios.

Standard library only: the configuration checks call these functions before torch or Megatron is imported.
"""

import math
import re
from collections.abc import Sequence
from itertools import pairwise

from mb_data.errors import BlendError

Blend = tuple[list[str], list[float] | None]
"""Prefixes of `.bin`/`.idx` pairs, and their weights; None weights each prefix in proportion to its size."""

SPLITS = ("train", "valid", "test")
"""Names of the three splits, in the order of every triple in this package."""


def blend_from_path(data_path: str | Sequence[str], *, field: str = "dataset.data_path") -> Blend:
    """Parse `data_path` as a blend.

    Args:
        data_path: One prefix, several prefixes separated by spaces, or a list. A list may interleave weights:
            `["30", "a", "70", "b"]`. As in Megatron-LM, an even number of entries is read as pairs of weight and
            prefix if the first entry of every pair is a number.
        field: Path of the field, for messages.

    Raises:
        BlendError: `data_path` is empty, only some of the pairs start with a number, or a weight is not positive.
    """
    entries = data_path.split() if isinstance(data_path, str) else [str(entry).strip() for entry in data_path]
    if not entries:
        raise BlendError(f"{field}: is empty. Set at least one prefix of a .bin/.idx pair.")
    weights = [_parse_number(entry) for entry in entries[::2]]
    numbers = [weight for weight in weights if weight is not None]
    if len(entries) % 2 or not numbers:
        return entries, None
    if len(numbers) < len(weights):
        raise BlendError(
            f"{field}: {len(numbers)} of {len(weights)} prefixes have a weight ({' '.join(entries)}); "
            "a blend has a weight for every prefix or for none. Write WEIGHT PREFIX WEIGHT PREFIX ..., or omit all "
            "weights."
        )
    wrong = find_bad_weights(numbers)
    if wrong:
        raise BlendError(
            f"{field}: {wrong}; prefixes are sampled in proportion to their weights. Use positive numbers."
        )
    return entries[1::2], numbers


def find_bad_weights(weights: Sequence[float]) -> str | None:
    """Return a description of the weights that are not positive and finite; None if all are."""
    wrong = [weight for weight in weights if not (math.isfinite(weight) and weight > 0)]
    return f"weights that are not positive: {', '.join(map(str, wrong))}" if wrong else None


def split_matrix(split: str) -> list[tuple[float, float] | None]:
    """Convert a ratio string to the interval of documents that each split takes.

    Args:
        split: Up to three numbers that need not sum to 1, such as `"90,5,5"`. Missing numbers are 0.

    Returns:
        A half-open interval within [0, 1] for each of train, validation and test; None if the ratio is 0.

    Raises:
        ValueError: There are no numbers, more than three numbers, or their sum is 0.
    """
    ratios = [float(number) for number in re.findall(r"\d*\.?\d+|\d+\.", split)]
    if re.sub(r"[\d.,\s]", "", split) or not 1 <= len(ratios) <= len(SPLITS) or sum(ratios) <= 0:
        raise ValueError(
            f"dataset.split: {split!r} is not one to three ratios with a positive sum. Use, for example, '90,5,5'."
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
