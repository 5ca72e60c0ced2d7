"""Metric of the last evaluation, which decides which checkpoint is the best."""

import math
from collections.abc import Mapping
from typing import Protocol

from mb_checkpoint.collectives import gather
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
        values = [value for value in gather(metrics.get(self._name)) if value is not None]
        if not values:
            if self._step is None:
                names = ", ".join(map(repr, metrics)) or "none on this rank"
                raise CheckpointConfigError(
                    f"checkpoint.best_metric: the evaluation has no metric {self._name!r} (it has {names}). Name "
                    "one of them."
                )
            return
        self._step, self._value = step, max(-math.inf if math.isnan(value) else value for value in values)

    def at(self, step: int) -> float | None:
        """Return the value after a step; None if there was no evaluation."""
        return self._value if self._step == step else None
