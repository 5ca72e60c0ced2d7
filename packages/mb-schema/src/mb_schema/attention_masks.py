"""Size of attention masks, from which operations are counted. Standard library only."""

from collections.abc import Mapping


def attended_pairs(length: float, *, window: tuple[int, int] | None = None, causal: bool = True) -> float:
    """Return the pairs of tokens of a sequence of which one attends to the other: the area of the mask.

    A sequence of s tokens has s^2 pairs. A causal mask keeps s^2 / 2 of them (its diagonal counts half), and a window
    (left, right) keeps those in its band; -1 is an unlimited side, and None both.
    """
    left, right = (-1, -1) if window is None else window
    pairs = _band(length, length if left < 0 else left + 1)
    return pairs if causal else pairs + _band(length, length if right < 0 else right)


def attended_positions(
    lengths: Mapping[float, float], *, window: tuple[int, int] | None = None, causal: bool = True
) -> float:
    """Return the positions that a token attends to, averaged over the tokens of sequences.

    `lengths` maps each length to the number of sequences that have it, or to their share.
    """
    pairs = sum(
        number * attended_pairs(length, window=window, causal=causal) for length, number in lengths.items()
    )
    return pairs / sum(length * number for length, number in lengths.items())


def _band(length: float, reach: float) -> float:
    reach = min(reach, length)
    return length * reach - reach**2 / 2
