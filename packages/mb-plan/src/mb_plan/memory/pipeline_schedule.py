"""Pipeline schedules: microbatches, microbatches in flight per stage, and the pipeline bubble."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from mb_plan.shape.fields import read_field


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSchedule:
    """A 1F1B schedule, interleaved if a stage has several chunks."""

    stages: int
    chunks: int
    """Virtual stages per rank."""
    microbatches: int
    group: int
    """Consecutive microbatches of a virtual stage."""
    ahead: int = 0
    """Additional forward passes before the first backward pass, as for overlapped expert communication."""

    @property
    def bubble(self) -> float:
        """Fraction of a step in which a stage is idle, 0 to 1, for stages of equal duration.

        (p - 1) / (v m + p - 1) with p stages, v chunks on each and m microbatches. Source: Narayanan et al.,
        "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM" (2021), section 2.2, which
        gives the ratio of idle to compute time, (p - 1) / (v m).
        """
        waiting = self.stages - 1
        return waiting / (self.chunks * self.microbatches + waiting)

    def peak(self, stage: int, held: Sequence[float], *, while_working: float = 0.0) -> float:
        """Return the peak memory of a stage if each microbatch in chunk c saves `held[c]`.

        The memory of a microbatch is held from its forward to its backward pass through a chunk; `while_working` is
        added to the peak. The order of passes is that of Megatron Core's schedules.
        """
        # Replay the passes: warm-up forward passes first, then one forward and one backward pass alternate. The peak is
        # reached right after a forward pass.
        forward = self._order(reverse=False)
        warmup = min(self._warmup(stage), len(forward))
        live = sum(held[chunk] for chunk in forward[:warmup])
        most = live
        for ahead, chunk in zip(self._order(reverse=True), forward[warmup:], strict=False):
            live += held[chunk]
            most = max(most, live)
            live -= held[ahead]
        return most + while_working

    def _warmup(self, stage: int) -> int:
        """Return the forward passes of a stage before its first backward pass."""
        if self.chunks == 1:
            return self.stages - stage - 1
        return (self.stages - stage - 1) * 2 + (self.chunks - 1) * self.group + self.ahead

    def _order(self, *, reverse: bool) -> list[int]:
        """Return the chunk of each pass, for enough microbatches that the pattern repeats."""
        if self.chunks == 1:
            return [0] * min(self.microbatches, self.stages + 1)
        enough = self.group * (2 + (self._warmup(0) // (self.chunks * self.group)) + 1)
        count = self.microbatches if self.microbatches <= enough else enough
        order = []
        for start in range(0, count, self.group):
            row = min(self.group, count - start)
            order += [chunk for chunk in range(self.chunks) for _ in range(row)]
        return [self.chunks - 1 - chunk for chunk in order] if reverse else order


def batch_sizes(train: object) -> tuple[int, ...]:
    """Return the global batch sizes of a training in order, the first and last of a ramp-up, or () if not known."""
    text, last = read_field(train, "step_batch_size_schedule"), read_field(train, "global_batch_size")
    if text is not None:
        return _scheduled_sizes(text)
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


_SIZE = re.compile(r"\d+(?:\.\d+)?[KMBT]?:(\d+(?:\.\d+)?)([KMBT]?)", re.IGNORECASE)
UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


def _scheduled_sizes(text: str) -> tuple[int, ...]:
    """Return the sizes of a schedule "threshold:size ...", or () if it is none."""
    words = [_SIZE.fullmatch(word) for word in text.replace(",", " ").split()]
    sizes = tuple(int(Fraction(word[1]) * UNITS[word[2].upper()]) for word in words if word)
    return sizes if len(sizes) == len(words) and all(sizes) else ()
