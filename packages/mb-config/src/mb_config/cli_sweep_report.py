"""Report of a sweep: the points that pass, the rules that reject the others, and the counts."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from mb_config.cli_plan import GIB, MIB, fits_gpu
from mb_config.cli_prediction import duration
from mb_config.plan.gpu_memory import GPU_MEMORY
from mb_config.plan.resource_plan import ResourcePlan
from mb_config.plan.sweep_chart import ChartPoint, render_sweep_chart
from mb_config.predict.prediction import Prediction
from mb_config.preflight.module_layouts import WORLD_SIZE
from mb_config.sweep import SweepResult
from mb_config.variations import Variation
from mb_schema.rules import Problem
from mb_schema.secrets import leaf, masked

COLUMN_TITLES = {
    WORLD_SIZE: "processes",
    "model.tensor_model_parallel_size": "tp",
    "model.sequence_parallel": "sp",
    "train.micro_batch_size": "mbs",
    "model.pipeline_model_parallel_size": "pp",
    "model.virtual_pipeline_model_parallel_size": "vp",
    "model.context_parallel_size": "cp",
    "model.expert_model_parallel_size": "ep",
    "model.expert_tensor_parallel_size": "etp",
}
"""Column titles of fields in the tables."""


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
    gpu: str | None = None
    """GPU of the sweep."""
    problems: Sequence[Problem] = ()
    """Errors of the resolved configuration, including settings that resolving rejects."""

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
        return None if self.plan is None else fits_gpu(self.plan, self.gpu)

    @property
    def rejected(self) -> list[str]:
        """Ids of the rules that reject the resolved configuration."""
        return list(dict.fromkeys(problem.id for problem in self.problems))

    @property
    def verdict(self) -> str:
        """Why the point cannot run; empty if it can."""
        if self.rejected:
            return f"rejected as resolved: {' '.join(self.rejected)}"
        return f"does not fit {self.gpu}" if self.fits is False else ""

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


def values_as_written(
    result: SweepResult, variations: Sequence[Variation], index: Sequence[int]
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

    result: SweepResult
    variations: Sequence[Variation]
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
        found: dict[str, list[SweptPoint]] = {}
        for point in self.points:
            if point.verdict:
                found.setdefault(point.verdict, []).append(point)
        groups += [(len(points), reason, points[0].values) for reason, points in found.items()]
        return sorted(groups, key=lambda group: -group[0])

    @property
    def problems(self) -> dict[str, Problem]:
        """Each rule that rejects a point, as written or as resolved, with the first problem that it reports."""
        found = dict(self.result.problems)
        for problem in (problem for point in self.points for problem in point.problems):
            found.setdefault(problem.id, problem)
        return found

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


def write_sweep_chart(path: Path, points: Sequence[SweptPoint], *, title: str) -> None:
    """Write the chart of the points with a predicted step to an SVG file, and print its path on stderr."""
    shown = [
        ChartPoint(label=_label(point), seconds=point.prediction.step_seconds, size=size)
        for point in points
        if point.prediction is not None and (size := point.statistics["bytes_per_rank"]) is not None
    ]
    if not shown:
        print(
            f"no chart written to {path}: no point has a predicted step and counted memory", file=sys.stderr
        )
        return
    gpu = points[0].gpu or ""
    memory = GPU_MEMORY.get(gpu)
    path.parent.mkdir(parents=True, exist_ok=True)
    svg = render_sweep_chart(
        shown, title=title, limit_bytes=None if memory is None else memory.size, limit=gpu
    )
    path.write_text(svg, encoding="utf-8")
    print(f"chart written to {path}", file=sys.stderr)


def _label(point: SweptPoint) -> str:
    return " ".join(f"{_short(path)} {_text(value)}" for path, value in point.values.items())


def print_report(report: SweepReport) -> None:
    """Print tables of the points that pass and of the rejected ones, the rules, and the counts."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    if report.shown:
        console.print(_passing_table(report.result, report.shown))
    if report.folded:
        console.print(_rejected_table(report))
    for name, problem in report.problems.items():
        console.print(f"{name}  {problem}", markup=False, soft_wrap=True)
    for line in _counts(report):
        console.print(line, markup=False, soft_wrap=True)


def _passing_table(result: SweepResult, points: Sequence[SweptPoint]) -> Table:
    """Return a table with one row per point: values, replicas, microbatches, memory and pipeline bubble."""
    unit = GIB if max(point.statistics["bytes_per_rank"] or 0 for point in points) >= GIB.size else MIB
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for axis in result.axes:
        table.add_column(_short(axis.path), justify="right")
    timed = any(point.prediction is not None for point in points)
    speeds = ("step", "tokens/s/GPU", "MFU") if timed else ()
    for column in ("dp", "microbatches", f"{unit.name} per rank", "waiting", *speeds, ""):
        table.add_column(column, justify="right")
    for point in points:
        replicas, microbatches, size, waiting = point.statistics.values()
        table.add_row(
            *(_text(value) for value in point.values.values()),
            _text(replicas, "?"),
            _text(microbatches, "?"),
            unit(size),
            "?" if waiting is None else f"{waiting:.1%}",
            *(_speed_columns(point.prediction) if timed else ()),
            point.verdict,
        )
    return table


def _speed_columns(prediction: Prediction | None) -> tuple[str, str, str]:
    if prediction is None:
        return ("?", "?", "?")
    mfu = "?" if prediction.mfu is None else f"{prediction.mfu:.1%}"
    return (
        duration(prediction.step_seconds),
        f"{prediction.tokens_per_second_per_gpu:,.0f}",
        mfu,
    )


def _rejected_table(report: SweepReport) -> Table:
    """Return a table with one row per group of points that the same rules, or the memory, reject."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("rejected", justify="right")
    table.add_column("by")
    table.add_column("for example")
    for count, reason, example in report.folded:
        table.add_row(
            f"{count:,}",
            reason,
            " ".join(f"{_short(path)}={_text(value)}" for path, value in example.items()),
        )
    return table


def _counts(report: SweepReport) -> Iterator[str]:
    """Yield the number of points of each kind, including those that are not shown."""
    result, points = report.result, report.points
    rejected = sum(group.count for group in result.rejected)
    yield (
        f"{_points(result.total)}: {len(result.passing):,} pass the rules as written, {rejected:,} rejected by them"
    )
    later = sum(bool(point.rejected) for point in points)
    if points:
        more = f", {later:,} of these rejected as resolved" if later else ""
        yield f"{_points(len(points))} resolved, {len(report.shown):,} shown{more}"
    too_large = sum(point.fits is False and not point.rejected for point in points)
    if too_large:
        yield f"{_points(too_large)} too large for the memory of {points[0].gpu}"
    for reason in dict.fromkeys(point.unplanned for point in points if point.unplanned):
        yield f"not planned: {reason}"
    if len(points) < len(result.passing):
        more = f"{len(result.passing) - len(points):,} more pass as written and were not resolved"
        yield f"{more}: --limit N resolves and shows N, --limit 0 all"


def _points(number: int) -> str:
    return "1 point" if number == 1 else f"{number:,} points"


def _short(path: str) -> str:
    """Return the column title of a field."""
    return COLUMN_TITLES.get(path, path.rpartition(".")[2])


def _text(value: object, unknown: str = "null") -> str:
    """Format a value as it is written on the command line."""
    if value is None:
        return unknown
    return str(value).lower() if isinstance(value, bool) else str(value)
