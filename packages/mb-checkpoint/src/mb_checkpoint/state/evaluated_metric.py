"""Metric of the last evaluation, which decides which checkpoint is the best."""

import math
from collections.abc import Mapping
from typing import Protocol

import torch
import torch.distributed as dist

from mb_checkpoint.errors import CheckpointConfigError


class EvaluationContext(Protocol):
    """Event of an evaluation; the context of `mb_loop`'s callbacks matches."""

    @property
    def total_loss_dict(self) -> Mapping[str, float] | None:
        """Metrics by name on the ranks that know them; empty on the others, None if the evaluation was stopped."""
        ...


class EvaluatedMetric:
    """Value of one metric in the last evaluation, known to all ranks.

    Args:
        name: name of the metric.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._step: int | None = None
        self._value: float | None = None

    def record(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record the metric after a step. Collective over the world, because only some ranks know the metrics.

        Raises:
            CheckpointConfigError: on all ranks: no rank knows such a metric, and none has known it before.
        """
        local_value = metrics.get(self._name)
        value = _maximum(
            -math.inf if local_value is None or math.isnan(local_value) else local_value,
            has_value=local_value is not None,
        )
        if value is None:
            if self._step is None:
                names = ", ".join(map(repr, metrics)) or "none on this rank"
                raise CheckpointConfigError(
                    f"checkpoint.best_metric: the evaluation has no metric {self._name!r} (it has {names}). Name "
                    "one of them."
                )
            return
        self._step, self._value = step, value

    def at(self, step: int) -> float | None:
        """Return the value after a step; None if there was no evaluation."""
        return self._value if self._step == step else None


def _maximum(value: float, *, has_value: bool) -> float | None:
    """Return the largest value of the ranks that know one; None if none does. Collective over the world."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return value if has_value else None
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    pair = torch.tensor([value, float(has_value)], device=device, dtype=torch.float64)
    dist.all_reduce(pair, op=dist.ReduceOp.MAX)
    largest, any_known = pair.tolist()
    return largest if any_known else None
