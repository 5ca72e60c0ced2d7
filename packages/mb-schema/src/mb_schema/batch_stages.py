"""Global batch sizes over a training run: constant, a linear ramp-up, or the steps of a schedule."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

_PAIR = re.compile(
    r"(?P<threshold>\d+(?:\.\d+)?)(?P<threshold_unit>[KMBT]?):(?P<size>\d+(?:\.\d+)?)(?P<size_unit>[KMBT]?)",
    re.IGNORECASE,
)
UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
"""Suffix of a number -> its factor."""


class BatchStage(NamedTuple):
    """A batch size and the position in the data at which it starts."""

    first: int
    """Sequences consumed before the stage."""

    size: int
    """Sequences in a global batch."""


def scheduled_stages(text: str, *, seq_length: int | None = None) -> tuple[BatchStage, ...]:
    """Return the stages of a schedule "threshold:size ...", as Megatron Core reads it.

    K, M, B and T are powers of a thousand. With a sequence length, thresholds are tokens and are converted to sequences
    by integer division; without one they are sequences.

    Raises:
        ValueError: The text cannot be parsed, a size is not whole, the first threshold is not 0, or thresholds do not
            increase.
    """
    pairs = [_PAIR.fullmatch(word) for word in text.replace(",", " ").split()]
    if not pairs or None in pairs:
        raise ValueError(f"{text!r} is not a list of threshold:size")
    fractions = [pair[0] for pair in pairs if pair and _number(pair, "size").denominator > 1]
    if fractions:
        raise ValueError(f"{text!r} has a size that is not whole in {fractions[0]!r}")
    stages = tuple(
        BatchStage(int(_number(pair, "threshold") // (seq_length or 1)), int(_number(pair, "size")))
        for pair in pairs
        if pair
    )
    if stages[0].first != 0:
        raise ValueError(f"{text!r} does not begin at threshold 0")
    if not all(low.first < high.first for low, high in pairwise(stages)):
        raise ValueError(
            f"{text!r} has thresholds that do not increase ({[stage.first for stage in stages]} sequences)"
        )
    if min(stage.size for stage in stages) < 1:
        raise ValueError(f"{text!r} has a batch of less than 1")
    return stages


def growing_stages(ramp: Sequence[int], *, global_batch_size: int) -> tuple[BatchStage, ...]:
    """Return the stages of `rampup_batch_size` [first, increment, S]: n increments, one after every S / n sequences."""
    first, increment, length = ramp
    blocks = (global_batch_size - first) // increment
    return tuple(
        BatchStage(-(-block * length // max(blocks, 1)), first + block * increment)
        for block in range(blocks + 1)
    )


def unscheduled_stages(*, global_batch_size: int, ramp: list[int] | None) -> tuple[BatchStage, ...]:
    """Return the stages of a batch size without a schedule: `growing_stages` of a ramp-up, or one."""
    if ramp is None:
        return (BatchStage(0, global_batch_size),)
    return growing_stages(ramp, global_batch_size=global_batch_size)


def sequences_in(steps: int, stages: Sequence[BatchStage], *, unit: int = 1) -> int:
    """Return the sequences in the first `steps` steps, whose batches are rounded down to multiples of `unit`."""
    consumed, left = 0, steps
    for stage, following in pairwise(stages):
        size = stage.size // unit * unit
        taken = min(left, max(0, -(-(following.first - consumed) // max(size, 1))))
        consumed, left = consumed + taken * size, left - taken
    return consumed + left * (stages[-1].size // unit * unit)


def steps_within(sequences: int, stages: Sequence[BatchStage]) -> int:
    """Return the number of steps in at most so many sequences: a last batch that is not full is left out."""
    return bisect_right(range(1, sequences + 1), sequences, key=lambda steps: sequences_in(steps, stages))


def _number(pair: re.Match[str], name: str) -> Fraction:
    return Fraction(pair[name]) * UNITS[pair[f"{name}_unit"].upper()]
