"""Number of microbatches per step: constant, rounded down, or ramping up.

Stateless integer arithmetic: the batch of a step is a function of the samples consumed before it, so that a resumed run
needs only that counter.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mb_loop.errors import LoopError
from mb_schema.batch_stages import BatchStage, growing_stages, scheduled_stages


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

        A schedule such as "0:768 250B:1536" replaces `global_batch_size`; see `mb_schema.batch_stages`.

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
            stages = _scheduled(step_batch_size_schedule, seq_length=seq_length)
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


def _scheduled(text: str, *, seq_length: int | None) -> tuple[BatchStage, ...]:
    try:
        return scheduled_stages(text, seq_length=seq_length)
    except ValueError as error:
        raise BatchSizeError(
            f"train.step_batch_size_schedule: {error}. Write it like '0:768 250B:1536'."
        ) from error


def _ramp(global_batch_size: int, rampup: Sequence[int] | None) -> tuple[BatchStage, ...]:
    if rampup is None:
        return (BatchStage(0, global_batch_size),)
    where = f"train.rampup_batch_size: {list(rampup)} with global_batch_size={global_batch_size}"
    if len(rampup) != 3 or min(rampup) < 1:
        raise BatchSizeError(
            f"{where}: needs three positive numbers. Give [first batch, increment, samples]."
        )
    first, increment, _ = rampup
    if first > global_batch_size or (global_batch_size - first) % increment:
        raise BatchSizeError(
            f"{where}: increments of {increment} from {first} do not end at {global_batch_size}. "
            "Choose a first batch and an increment that reach the global batch exactly."
        )
    return growing_stages(rampup, global_batch_size=global_batch_size)
