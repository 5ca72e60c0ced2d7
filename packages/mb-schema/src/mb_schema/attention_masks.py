"""Size of attention masks, from which operations are counted. Standard library only."""


def attended_pairs(length: float, *, window: tuple[int, int] | None = None, causal: bool = True) -> float:
    """Return the pairs of tokens of a sequence of which one attends to the other: the area of the mask.

    A sequence of s tokens has s^2 pairs. A causal mask keeps s^2 / 2 of them (its diagonal counts half), and a window
    (left, right) keeps those in its band; -1 is an unlimited side, and None both.
    """
    left, right = (-1, -1) if window is None else window
    pairs = _band(length, length if left < 0 else left + 1)
    return pairs if causal else pairs + _band(length, length if right < 0 else right)


def _band(length: float, reach: float) -> float:
    reach = min(reach, length)
    return length * reach - reach**2 / 2
