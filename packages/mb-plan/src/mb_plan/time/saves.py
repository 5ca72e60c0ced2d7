"""Checkpoints of a run: interval, work lost at a failure, and disk space.

The interval minimizes the expected loss, by Young (1974) and Daly (2006): with a time `held` that a save holds
training and a mean time `mtbf` between failures, saving every T seconds costs `held / T` of the time, and a failure
loses T / 2 in the mean. The sum is least at T = sqrt(2 * held * mtbf).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mb_plan.memory.resource_plan import ResourcePlan
from mb_plan.shape.fields import read_field


def duration(seconds: float) -> str:
    """Return a time in the unit that people use for its size."""
    for unit, size in (("days", 86_400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.1f} ms"


GPU_HOURS_BETWEEN_FAILURES = 50_676
"""GPU hours for each unexpected interruption: 419 in 54 days on 16,384 GPUs (The Llama 3 Herd of Models, 3.3.4)."""
GPUS_PER_NODE = 8
NODE_WRITE_BYTES = 2**29
"""Bytes per second that a node writes to a shared file system, with all nodes at once; an assumption."""
MAX_SECONDS = 3600.0
"""Longest computed interval: few GPUs fail rarely, but runs are also stopped, preempted and mistaken."""
STAGING_BYTES = 4 * 2**30
"""Bytes per second of the copy of one rank's state to the host, during which a background save holds training."""
PLANNING_SECONDS = 2.0
"""Time that a save holds training in addition, for its plan and agreement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavePlan:
    """Checkpoints of a run, and what a failure costs."""

    interval: int | None
    """Steps between two checkpoints; None: only the last step is saved."""
    best_interval: int
    """Steps between two checkpoints that lose the least time."""
    step_seconds: float
    held_seconds: float
    """Time that a save holds training."""
    write_seconds: float
    """Time until a checkpoint is complete."""
    failure_seconds: float
    """Mean time between two failures."""
    checkpoints: int | None
    """Largest number of checkpoints on disk at once; None: the length of the run is not known."""
    checkpoint_bytes: int

    @property
    def disk_bytes(self) -> int | None:
        """Disk space of the checkpoints."""
        return None if self.checkpoints is None else self.checkpoints * self.checkpoint_bytes

    @property
    def lost_seconds(self) -> float | None:
        """Largest amount of work that a failure loses: of one interval, and of the checkpoint in flight."""
        return None if self.interval is None else self.interval * self.step_seconds + self.write_seconds

    def reason(self, *, gpu: str, ranks: int) -> str:
        """Return text that explains the best interval."""
        failing = "1 GPU fails" if ranks == 1 else f"{ranks:,} GPUs fail"
        return (
            f"{duration(self.best_interval * self.step_seconds)} at {duration(self.step_seconds)} a step predicted on "
            f"{gpu}; a save holds training for {duration(self.held_seconds)}, {failing} every "
            f"{duration(self.failure_seconds)} in the mean"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain data for JSON."""
        return {
            "interval": self.interval,
            "best_interval": self.best_interval,
            "held_seconds": self.held_seconds,
            "write_seconds": self.write_seconds,
            "lost_seconds": self.lost_seconds,
            "failure_seconds": self.failure_seconds,
            "checkpoints": self.checkpoints,
            "disk_bytes": self.disk_bytes,
        }


def plan_saves(
    sections: Mapping[str, object],
    plan: ResourcePlan,
    *,
    step_seconds: float,
    write_bytes: float | None = None,
) -> SavePlan | None:
    """Plan the checkpoints of a run; None if the size of a checkpoint is not counted.

    Args:
        sections: As for `make_plan`; "train" and "checkpoint" are read.
        plan: Their plan.
        step_seconds: Time of a step, predicted or measured.
        write_bytes: Bytes per second that all ranks together write; None: an assumption for each node.
    """
    if plan.checkpoint_bytes is None:
        return None
    checkpoint, steps = sections.get("checkpoint"), read_field(sections.get("train"), "train_iters")
    write = plan.checkpoint_bytes / (
        write_bytes or math.ceil(plan.world_size / GPUS_PER_NODE) * NODE_WRITE_BYTES
    )
    staging = plan.checkpoint_bytes / plan.world_size / STAGING_BYTES
    held = PLANNING_SECONDS + (staging if read_field(checkpoint, "async_save", False) else write)
    between = GPU_HOURS_BETWEEN_FAILURES * 3600 / plan.world_size
    # a save ends before the next one begins
    best = max(min(math.sqrt(2 * held * between), MAX_SECONDS), 2 * write)
    interval = read_field(checkpoint, "save_interval")
    interval = interval if isinstance(interval, int) and interval > 0 else None
    return SavePlan(
        interval=interval,
        best_interval=_rounded(best / step_seconds),
        step_seconds=step_seconds,
        held_seconds=held,
        write_seconds=write,
        failure_seconds=between,
        checkpoints=None if not steps else _kept(checkpoint, steps=steps, interval=interval or steps),
        checkpoint_bytes=plan.checkpoint_bytes,
    )


def _rounded(steps: float) -> int:
    """Return a number of steps with one significant digit, 5 or 0 in the second: 1, 2, ... 10, 15, 20, ... 100, 150."""
    unit = max(1, int(10 ** math.floor(math.log10(max(steps, 1)))) // 2)
    return max(1, int(steps // unit) * unit)


def _kept(checkpoint: object, *, steps: int, interval: int) -> int:
    """Return the largest number of checkpoints on disk at once: after the last save, before the oldest is deleted."""
    saves = math.ceil(steps / interval)
    newest = read_field(checkpoint, "most_recent_k", -1)
    if newest is None or newest < 0 or saves <= newest + 1:
        return saves
    retained = read_field(checkpoint, "save_retain_interval")
    older = saves - newest - 1
    kept: int = newest + 1 + (older * interval // math.lcm(interval, retained) if retained else 0)
    return kept
