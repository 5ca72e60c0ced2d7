"""Points of a sweep that pass the rules: their plans and predictions, the best of them, and the report of all."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mb_plan.memory.resource_plan import ResourcePlan
from mb_plan.sweep.grid import AxisLike, SweepResult
from mb_plan.time.prediction import Prediction
from mb_schema.rules import Problem
from mb_schema.secrets import leaf, masked


@dataclass(frozen=True, slots=True, kw_only=True)
class SweptPoint:
    """Variation that passes the rules, after it is resolved and planned."""

    values: Mapping[str, Any]
    """Path to value, as written by the user."""
    plan: ResourcePlan | None
    """Resource plan; None: the variation cannot be planned."""
    unplanned: str
    """Reason why it cannot be planned; empty if it is planned, or rejected."""
    prediction: Prediction | None = None
    """Predicted step on the GPU of the sweep; None: without a GPU, or the time is not modelled."""
    unpredicted: str = ""
    """Reason why the time is not modelled, if it was to be predicted."""
    gpu: str | None = None
    """GPU of the sweep."""
    problems: Sequence[Problem] = ()
    """Errors of the resolved configuration, including settings that resolving rejects."""

    @property
    def settings(self) -> list[str]:
        """Values as overrides of a command line, not quoted for a shell."""
        return [f"{path}={_as_setting(value)}" for path, value in self.values.items()]

    def to_dict(self) -> dict[str, Any]:
        """Return the point as JSON data."""
        return {
            "values": dict(self.values),
            **self.statistics,
            "predicted": None if self.prediction is None else self.prediction.to_dict(),
            "fits": self.fits,
            "rejected_when_resolved": self.rejected,
        }

    @property
    def fits(self) -> bool | None:
        """Whether the fullest rank fits the GPU; None if one of the two is not known."""
        return None if self.plan is None else self.plan.fits(self.gpu)

    @property
    def rejected(self) -> list[str]:
        """Ids of the rules that reject the resolved configuration."""
        return list(dict.fromkeys(problem.id for problem in self.problems))

    @property
    def verdict(self) -> str:
        """Why the point cannot run; empty if it can."""
        if self.rejected:
            return f"rejected as resolved: {' '.join(self.rejected)}"
        return "does not fit" if self.fits is False else ""

    @property
    def statistics(self) -> dict[str, float | None]:
        """Statistics by which a point is chosen; None: not counted."""
        plan = self.plan
        return {
            "data_parallel_size": None if plan is None else plan.data_parallel_size,
            "num_microbatches": None if plan is None else plan.num_microbatches,
            "bytes_per_rank": None if plan is None else plan.peak.rank_bytes.total,
            "bubble_fraction": None if plan is None else plan.bubble_fraction,
        }


def _as_setting(value: object) -> str:
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_as_setting, value))}]"
    return value if isinstance(value, str) else json.dumps(value)


def values_as_written(
    result: SweepResult, variations: Sequence[AxisLike], index: Sequence[int]
) -> dict[str, Any]:
    """Return path to value at a point, as written by the user, with secrets masked."""
    written = {variation.path: variation.values for variation in variations}
    return {
        axis.path: masked(leaf(axis.path), written.get(axis.path, axis.values)[number])
        for axis, number in zip(result.axes, index, strict=True)
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepReport:
    """Result of a sweep, with the points that were resolved."""

    name: str
    """Name of the run, such as its recipe."""
    result: SweepResult
    variations: Sequence[AxisLike]
    points: Sequence[SweptPoint]
    """Points that pass the rules and were resolved."""
    shown: Sequence[SweptPoint]
    """Points to show."""

    @property
    def folded(self) -> list[tuple[int, str, Mapping[str, Any]]]:
        """Number of points that cannot run, reason, and values of the first of them; the most frequent reason first.

        The reason is the rules that reject the point as written or as resolved, or the memory of the GPU.
        """
        groups: list[tuple[int, str, Mapping[str, Any]]] = [
            (group.count, " ".join(group.rules), values_as_written(self.result, self.variations, group.first))
            for group in self.result.rejected
        ]
        by_verdict: dict[str, list[SweptPoint]] = {}
        for point in self.points:
            if point.verdict:
                by_verdict.setdefault(point.verdict, []).append(point)
        groups += [(len(points), reason, points[0].values) for reason, points in by_verdict.items()]
        return sorted(groups, key=lambda group: -group[0])

    @property
    def problems(self) -> dict[str, Problem]:
        """Each rule that rejects a point, as written or as resolved, with the first problem that it reports."""
        first = dict(self.result.problems)
        for problem in (problem for point in self.points for problem in point.problems):
            first.setdefault(problem.id, problem)
        return first

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON data."""
        return {
            "points": self.result.total,
            "passing": len(self.result.passing),
            "resolved": len(self.points),
            "shown": [point.to_dict() for point in self.shown],
            "rejected": [
                {
                    "rules": list(group.rules),
                    "count": group.count,
                    "example": values_as_written(self.result, self.variations, group.first),
                }
                for group in self.result.rejected
            ],
            "rules": {
                name: {"message": problem.message, "why": problem.why, "fix": problem.fix}
                for name, problem in self.problems.items()
            },
        }


def best_points(points: Sequence[SweptPoint], number: int | None) -> list[SweptPoint]:
    """Return the points of runs that start, the best first, at most `number`.

    A point that fits the memory precedes one that does not, then comes the higher predicted throughput; of those that
    do not fit the least memory is first. Points without a prediction follow: the least pipeline waiting first, then the
    least memory per rank.
    """
    unknown = float("inf")

    def rank(point: SweptPoint) -> tuple[float, float, float, float]:
        waiting, size = (point.statistics[name] for name in ("bubble_fraction", "bytes_per_rank"))
        speed = 0.0 if point.prediction is None else point.prediction.tokens_per_second_per_gpu
        return (
            (size or 0.0) if point.fits is False else 0.0,
            -speed,
            unknown if waiting is None else waiting,
            unknown if size is None else size,
        )

    return sorted((point for point in points if not point.rejected), key=rank)[:number]
