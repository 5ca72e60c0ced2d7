"""Number of microbatches per step: constant, rounded down, or ramping up.

Stateless integer arithmetic: the batch of a step is a function of the samples consumed before it, so that a resumed run
needs only that counter.
"""

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from mb_loop.errors import LoopError


class BatchSizeError(LoopError, ValueError):
    """Batch sizes are inconsistent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBatch:
    """Batch of one step, over all ranks."""

    num_microbatches: int
    """Forward-backward passes of each rank."""

    micro_batch_size: int
    """Sequences per microbatch and rank."""

    samples: int
    """Sequences that are used: num_microbatches x micro_batch_size x data-parallel size."""

    dropped: int = 0
    """Sequences of the requested batch that rounding down leaves out."""


def step_batch(
    global_batch_size: int,
    *,
    micro_batch_size: int,
    data_parallel_size: int,
    decrease_batch_size_if_needed: bool = False,
) -> StepBatch:
    """Split a global batch into microbatches.

    Raises:
        BatchSizeError: a size is not positive, or the global batch size is not divisible (rule V242).
    """
    sizes = (
        f"global_batch_size={global_batch_size}, micro_batch_size={micro_batch_size}, dp={data_parallel_size}"
    )
    if min(global_batch_size, micro_batch_size, data_parallel_size) < 1:
        raise BatchSizeError(
            f"train: batch sizes must be at least 1 ({sizes}). Set them to positive numbers."
        )
    one_pass = micro_batch_size * data_parallel_size
    num_microbatches, dropped = divmod(global_batch_size, one_pass)
    if num_microbatches == 0 or (dropped and not decrease_batch_size_if_needed):
        raise BatchSizeError(
            f"train.global_batch_size: is not a multiple of {one_pass} ({sizes}), because every rank runs the same "
            f"number of microbatches. Use {max(num_microbatches, 1) * one_pass} or {(num_microbatches + 1) * one_pass}"
            + (", or set train.decrease_batch_size_if_needed=true." if num_microbatches else ".")
        )
    return StepBatch(
        num_microbatches=num_microbatches,
        micro_batch_size=micro_batch_size,
        samples=num_microbatches * one_pass,
        dropped=dropped,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """Batches of all steps of a run. Build with `of`, which checks all sizes that can occur."""

    batches: Mapping[int, StepBatch]
    """Requested global batch size -> its split into microbatches."""

    sizes: tuple[int, ...]
    """Requested global batch sizes in the order of their use; one entry if the size is constant."""

    thresholds: tuple[int, ...] = (0,)
    """Consumed samples from which on each size is used; strictly increasing, starting at 0."""

    @classmethod
    def of(
        cls,
        global_batch_size: int,
        *,
        micro_batch_size: int,
        data_parallel_size: int,
        rampup_batch_size: Sequence[int] | None = None,
        step_batch_size_schedule: str | None = None,
        seq_length: int | None = None,
        decrease_batch_size_if_needed: bool = False,
    ) -> "BatchPlan":
        """Plan a constant batch size, a ramp-up (`rampup_batch_size=[first, increment, samples]`), or a step schedule.

        A schedule such as "0:768 250B:1536" replaces `global_batch_size`; see `parse_schedule`.

        Raises:
            BatchSizeError: a size that will occur is not divisible, the ramp-up does not end at the global batch size,
                the schedule cannot be parsed, or it is combined with a ramp or with rounding down.
        """
        if step_batch_size_schedule is not None:
            if rampup_batch_size is not None or decrease_batch_size_if_needed:
                raise BatchSizeError(
                    f"train.step_batch_size_schedule: {step_batch_size_schedule!r} with rampup_batch_size="
                    f"{rampup_batch_size}, decrease_batch_size_if_needed={decrease_batch_size_if_needed}; the schedule "
                    "defines every size itself. Leave the other two out."
                )
            stages = parse_schedule(step_batch_size_schedule, seq_length=seq_length)
        else:
            stages = _ramp(global_batch_size, rampup_batch_size)
        sizes = tuple(size for _, size in stages)
        batches = {
            size: step_batch(
                size,
                micro_batch_size=micro_batch_size,
                data_parallel_size=data_parallel_size,
                decrease_batch_size_if_needed=decrease_batch_size_if_needed,
            )
            for size in sizes
        }
        return cls(batches=batches, sizes=sizes, thresholds=tuple(samples for samples, _ in stages))

    def at(self, consumed_samples: int) -> StepBatch:
        """Return the batch of the step that starts after `consumed_samples`."""
        if len(self.sizes) == 1:
            return self.batches[self.sizes[0]]
        return self.batches[self.sizes[bisect_right(self.thresholds, consumed_samples) - 1]]


def parse_schedule(text: str, *, seq_length: int | None = None) -> tuple[tuple[int, int], ...]:
    """Return the (threshold in samples, global batch size) pairs of a step schedule.

    The text consists of pairs "threshold:size", separated by spaces or commas; K, M, B, T are powers of a thousand.
    With a sequence length, thresholds are tokens and are converted to samples by integer division; without, they are
    samples.

    Raises:
        BatchSizeError: a pair cannot be parsed, a size is not whole, the first threshold is not 0, or thresholds do not
            increase.
    """
    where = f"train.step_batch_size_schedule: {text!r}"
    pairs = [_PAIR.fullmatch(word) for word in text.replace(",", " ").split()]
    if not pairs or None in pairs:
        raise BatchSizeError(f"{where}: is not a list of threshold:size. Write it like '0:768 250B:1536'.")
    stages = tuple(
        (int(_amount(pair, "threshold") // (seq_length or 1)), int(_amount(pair, "size")))
        for pair in pairs
        if pair
    )
    fractions = [pair[0] for pair in pairs if pair and _amount(pair, "size").denominator > 1]
    if fractions:
        raise BatchSizeError(
            f"{where}: has a size that is not whole in {fractions[0]!r}. Use a whole number."
        )
    thresholds = [threshold for threshold, _ in stages]
    rising = all(low < high for low, high in pairwise(thresholds))
    if thresholds[0] != 0 or not rising or min(size for _, size in stages) < 1:
        raise BatchSizeError(
            f"{where}: gives sizes from {list(stages)} (samples, size); the first must start at 0, and each "
            "after the previous one, with a positive size. Correct the thresholds."
        )
    return stages


_PAIR = re.compile(
    r"(?P<threshold>\d+(?:\.\d+)?)(?P<threshold_unit>[KMBT]?):(?P<size>\d+(?:\.\d+)?)(?P<size_unit>[KMBT]?)",
    re.IGNORECASE,
)
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


def _amount(pair: re.Match[str], name: str) -> Fraction:
    return Fraction(pair[name]) * _UNITS[pair[f"{name}_unit"].upper()]


def _ramp(global_batch_size: int, rampup: Sequence[int] | None) -> tuple[tuple[int, int], ...]:
    """Return the stages of Megatron's ramp-up: n increments over S samples, one every S/n samples."""
    if rampup is None:
        return ((0, global_batch_size),)
    where = f"train.rampup_batch_size: {list(rampup)} with global_batch_size={global_batch_size}"
    if len(rampup) != 3 or min(rampup) < 1:
        raise BatchSizeError(
            f"{where}: needs three positive numbers. Give [first batch, increment, samples]."
        )
    first, increment, samples = rampup
    if first > global_batch_size or (global_batch_size - first) % increment:
        raise BatchSizeError(
            f"{where}: increments of {increment} from {first} do not end at {global_batch_size}. "
            "Choose a first batch and an increment that reach the global batch exactly."
        )
    increments = (global_batch_size - first) // increment
    return tuple(
        (-(-number * samples // max(increments, 1)), first + number * increment)
        for number in range(increments + 1)
    )
