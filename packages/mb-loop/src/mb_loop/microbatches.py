"""How many microbatches a step has: constant, rounded down, or ramping up.

Everything here is arithmetic on whole numbers, without state: the batch of a step follows from the samples consumed
before it, so a resumed run needs nothing but that counter.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


class BatchSizeError(ValueError):
    """The batch sizes do not fit each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBatch:
    """The batch of one step, over all ranks."""

    num_microbatches: int
    """Forward-backward passes of each rank."""

    micro_batch_size: int
    """Sequences of one rank in one pass."""

    samples: int
    """Sequences that are really used: num_microbatches x micro_batch_size x data-parallel size."""

    dropped: int = 0
    """Sequences of the wanted batch that rounding down leaves out."""


def step_batch(
    global_batch_size: int,
    *,
    micro_batch_size: int,
    data_parallel_size: int,
    decrease_batch_size_if_needed: bool = False,
) -> StepBatch:
    """Split a global batch into microbatches.

    Raises:
        BatchSizeError: a size is not positive, or the batch does not divide (rule V242).
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
    """The batch of every step of a run. Build with `of`, which checks all sizes that can occur."""

    batches: Mapping[int, StepBatch]
    """Wanted global batch size -> its split."""

    sizes: tuple[int, ...]
    """Wanted global batch sizes in the order in which they come; one entry when the size is constant."""

    rampup_samples: int = 0
    """Samples over which the sizes are spread evenly."""

    @classmethod
    def of(
        cls,
        global_batch_size: int,
        *,
        micro_batch_size: int,
        data_parallel_size: int,
        rampup_batch_size: Sequence[int] | None = None,
        decrease_batch_size_if_needed: bool = False,
    ) -> "BatchPlan":
        """Plan a constant batch, or one that grows as `rampup_batch_size=[first, increment, samples]` says.

        Raises:
            BatchSizeError: a size that will occur does not divide, or the ramp does not end at the global batch.
        """
        sizes, samples = _ramp(global_batch_size, rampup_batch_size)
        batches = {
            size: step_batch(
                size,
                micro_batch_size=micro_batch_size,
                data_parallel_size=data_parallel_size,
                decrease_batch_size_if_needed=decrease_batch_size_if_needed,
            )
            for size in sizes
        }
        return cls(batches=batches, sizes=sizes, rampup_samples=samples)

    def at(self, consumed_samples: int) -> StepBatch:
        """Return the batch of the step that starts after `consumed_samples`.

        The classic rule: with n increments over S samples, the size grows by one increment every S/n samples.
        """
        if consumed_samples >= self.rampup_samples:
            return self.batches[self.sizes[-1]]
        increments = consumed_samples * (len(self.sizes) - 1) // self.rampup_samples
        return self.batches[self.sizes[increments]]


def _ramp(global_batch_size: int, rampup: Sequence[int] | None) -> tuple[tuple[int, ...], int]:
    if rampup is None:
        return (global_batch_size,), 0
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
    return tuple(range(first, global_batch_size + 1, increment)), samples
