"""Pipeline schedules: microbatches, microbatches in flight per stage, and the pipeline bubble."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mb_plan.shape.fields import read_field
from mb_schema.batch_stages import scheduled_stages


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSchedule:
    """A 1F1B schedule, interleaved if a stage has several chunks."""

    stages: int
    """Pipeline-parallel ranks."""
    chunks: int
    """Virtual stages per rank; 1: not interleaved."""
    microbatches: int
    """Microbatches per step and data-parallel replica."""
    group: int
    """Consecutive microbatches of a virtual stage (`microbatch_group_size_per_vp_stage`)."""
    ahead: int = 0
    """Additional forward passes of an interleaved schedule before the first backward pass, as for overlapped expert
    communication."""

    @property
    def bubble(self) -> float:
        """Fraction of a step in which a stage is idle, 0 to 1, for stages of equal duration.

        (p - 1) / (v m + p - 1) with p stages, v chunks on each and m microbatches. Source: Narayanan et al.,
        "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM" (2021), section 2.2, which
        gives the ratio of idle to compute time, (p - 1) / (v m).
        """
        idle = self.stages - 1  # in forward and backward passes of one chunk and microbatch
        return idle / (self.chunks * self.microbatches + idle)

    def peak(self, stage: int, held: Sequence[float], *, while_working: float = 0.0) -> float:
        """Return the peak memory of a stage, in the unit of `held`.

        The order of passes is that of Megatron Core's schedules.

        Args:
            stage: Pipeline rank.
            held: Memory of one microbatch for each chunk, from its forward to its backward pass through the chunk.
            while_working: Memory of the pass that is running, such as that of recomputed layers; added to the peak.
        """
        # Replay the passes: warm-up forward passes first, then one forward and one backward pass alternate. The peak is
        # reached right after a forward pass.
        forward, backward = self._order(reverse=False), self._order(reverse=True)
        warmup = min(self._warmup(stage), len(forward))
        live = sum(held[chunk] for chunk in forward[:warmup])
        most = live
        # the last backward passes, after all forward passes, only release memory
        for forward_chunk, backward_chunk in zip(forward[warmup:], backward, strict=False):
            live += held[forward_chunk]
            most = max(most, live)
            live -= held[backward_chunk]
        return most + while_working

    def _warmup(self, stage: int) -> int:
        """Return the number of forward passes before those that alternate with backward passes.

        Source: `get_pp_rank_microbatches` of Megatron Core.
        """
        if self.chunks == 1:
            return self.stages - stage - 1
        return (self.stages - stage - 1) * 2 + (self.chunks - 1) * self.group + self.ahead

    def _order(self, *, reverse: bool) -> list[int]:
        """Return the chunk of each forward pass, or with `reverse` of each backward pass.

        Of many microbatches only the first are in it: so many that the pattern repeats and the peak is reached.
        """
        if self.chunks == 1:
            return [0] * min(self.microbatches, self.stages + 1)
        enough = self.group * (2 + (self._warmup(0) // (self.chunks * self.group)) + 1)
        count = min(self.microbatches, enough)
        order = []
        for start in range(0, count, self.group):
            in_group = min(self.group, count - start)
            order += [chunk for chunk in range(self.chunks) for _ in range(in_group)]
        return [self.chunks - 1 - chunk for chunk in order] if reverse else order


def batch_sizes(train: object) -> tuple[int, ...]:
    """Return the global batch sizes of a training in order, in sequences; () if they are not known.

    Of a linear ramp-up these are the first and the last one.

    Args:
        train: Section `train`.
    """
    text, last = read_field(train, "step_batch_size_schedule"), read_field(train, "global_batch_size")
    if text is not None:
        try:
            return tuple(stage.size for stage in scheduled_stages(text))
        except ValueError:  # reported by a rule
            return ()
    ramp = read_field(train, "rampup_batch_size")
    if not last:
        return ()
    return (ramp[0], last) if isinstance(ramp, list | tuple) and ramp else (last,)


def count_microbatches(
    global_batch: int | None, micro_batch: int | None, data_parallel: int | None
) -> int | None:
    """Return the microbatches per step and replica, or None if a size is missing or does not divide."""
    if (
        not global_batch
        or not micro_batch
        or not data_parallel
        or global_batch % (micro_batch * data_parallel)
    ):
        return None
    return global_batch // (micro_batch * data_parallel)
