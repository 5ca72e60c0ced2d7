"""Text and chart of a sweep: the points that pass, the rules that reject the others, and the counts."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from rich import box
from rich.table import Table

from mb_plan.cli.console import open_console, write_chart
from mb_plan.cli.plan_report import GIB, MIB
from mb_plan.memory.gpu_memory import GPU_MEMORY
from mb_plan.sweep.chart import ChartPoint, render_sweep_chart
from mb_plan.sweep.grid import Index
from mb_plan.sweep.points import SweepReport, SweptPoint
from mb_plan.time.prediction import Prediction
from mb_plan.time.saves import duration

PROGRESS_SECONDS = 5.0
"""Seconds between two reports of a sweep that is being planned."""
COLUMN_TITLES = {
    "facts.world_size": "processes",
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


def with_progress(
    indices: Iterable[Index], number: int, *, clock: Callable[[], float] = time.monotonic
) -> Iterator[Index]:
    """Yield the points of a sweep; report every `PROGRESS_SECONDS` on stderr how many are done and the time left."""
    began = reported = clock()
    for done, index in enumerate(indices):
        now = clock()
        if done and now - reported >= PROGRESS_SECONDS:
            reported, left = now, (now - began) / done * max(0, number - done)
            print(f"{done:,} of {number:,} points are planned, {duration(left)} left", file=sys.stderr)
        yield index


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
    svg = render_sweep_chart(
        shown, title=title, limit_bytes=None if memory is None else memory.size, limit=gpu
    )
    write_chart(path, svg, name="chart")


def _label(point: SweptPoint) -> str:
    return " ".join(f"{_short(path)} {_text(value)}" for path, value in point.values.items())


def print_report(report: SweepReport) -> None:
    """Print tables of the points that pass and of the rejected ones, the rules, and the counts."""
    console = open_console()
    if report.shown:
        console.print(_passing_table([axis.path for axis in report.result.axes], report.shown))
    if report.folded:
        console.print(_rejected_table(report))
    for name, problem in report.problems.items():
        console.print(f"{name}  {problem}", markup=False, soft_wrap=True)
    for line in _counts(report):
        console.print(line, markup=False, soft_wrap=True)


def print_layouts(points: Sequence[SweptPoint]) -> None:
    """Print a table of layouts, without the sizes that none of them has."""
    used = [path for path in points[0].values if {point.values[path] for point in points} - {None, 1}]
    open_console().print(_passing_table(used, points))


def _passing_table(paths: Sequence[str], points: Sequence[SweptPoint]) -> Table:
    """Return a table with one row per point: values, replicas, microbatches, memory and pipeline bubble."""
    unit = GIB if max(point.statistics["bytes_per_rank"] or 0 for point in points) >= GIB.size else MIB
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for path in paths:
        table.add_column(_short(path), justify="right")
    timed = any(point.prediction is not None for point in points)
    speeds = ("step", "tokens/s/GPU", "MFU") if timed else ()
    for column in ("dp", "microbatches", f"{unit.name} per rank", "waiting", *speeds, ""):
        table.add_column(column, justify="right")
    for point in points:
        replicas, microbatches, size, waiting = point.statistics.values()
        table.add_row(
            *(_text(point.values[path]) for path in paths),
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
