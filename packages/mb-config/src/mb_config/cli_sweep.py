"""Command `sweep`: checks and plans every combination of several values."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from mb_config._rules import Problem
from mb_config.cli_check import CommandInput
from mb_config.cli_errors import DONE, REJECTED
from mb_config.cli_plan import GIB, MIB
from mb_config.facts import TargetMachine
from mb_config.module_layouts import WORLD_SIZE, rules_per_point
from mb_config.overrides import apply_overrides
from mb_config.plan.errors import PlanError
from mb_config.plan.resource_plan import ResourcePlan, make_plan
from mb_config.preflight import effective_dist
from mb_config.program import ConfigProgram, check_request
from mb_config.request import ConfigRequest, RequestReader
from mb_config.sweep import Axis, SweepResult, run_sweep
from mb_config.variations import Variation, read_variations, split_yaml, to_axes
from mb_config.yaml_file import dump_yaml, read_yaml

COLUMN_TITLES = {
    WORLD_SIZE: "processes",
    "model.tensor_model_parallel_size": "tp",
    "model.pipeline_model_parallel_size": "pp",
    "model.virtual_pipeline_model_parallel_size": "vp",
    "model.context_parallel_size": "cp",
    "model.expert_model_parallel_size": "ep",
    "model.expert_tensor_parallel_size": "etp",
}
"""Column titles of fields in the tables."""

NOTHING_VARIES = (
    "nothing is swept over, so that this is one point: "
    "give a field several values, as in train.micro_batch_size=1,2"
)


def sweep(
    program: ConfigProgram,
    given: CommandInput,
    *,
    targets: Sequence[TargetMachine],
    limit: int | None,
    top: int | None = None,
    as_json: bool,
) -> int:
    """Print the variations that pass, and the rules that reject the others. Return 1 if none passes.

    Args:
        program: Reader, rules and facts.
        given: Recipe or file, and overrides. A field with several values is swept over; so is a list in a file for a
            field that takes none.
        targets: Machines to sweep over, which differ in their number of processes.
        limit: Maximum number of passing variations that are resolved, planned and shown; None: all.
        top: Number of the best points to show (`best_points`); None: all that are resolved.
        as_json: Print one JSON object.
    """
    swept = read_swept(program.reader, given)
    request, variations = swept.request, swept.variations
    config = request.config
    program.place(request, given.out)
    facts = program.gather_facts(targets[0], config.env_vars)
    axes = to_axes(
        config, variations, section_factories=program.reader.section_factories, targets=program.reader.targets
    )
    if len(targets) > 1:
        axes += (Axis(path=WORLD_SIZE, values=tuple(target.world_size for target in targets)),)
    if not axes:
        print(NOTHING_VARIES, file=sys.stderr)
    every = config.sections()
    sections = {name: every[name] for name in request.sections or every}
    if "dist" in sections:
        sections["dist"] = effective_dist(config.dist, facts)
    result = run_sweep(sections, axes, rules_per_point(program.checks.rules, config.model), facts=facts)
    points = _resolve_points(program, swept, result, targets=targets, limit=limit)
    found = SweepReport(
        result=result,
        variations=variations,
        points=points,
        shown=points if top is None else best_points(points, top),
    )
    if as_json:
        print(json.dumps(found.to_dict(), indent=2))
    else:
        _show(found)
    return DONE if any(not point.rejected for point in points) else REJECTED


def _resolve_points(
    program: ConfigProgram,
    swept: SweptRequest,
    result: SweepResult,
    *,
    targets: Sequence[TargetMachine],
    limit: int | None,
) -> list[SweptPoint]:
    """Resolve and plan the points that pass; beyond the limit only while no resolved point has passed."""
    points: list[SweptPoint] = []
    for index in result.passing:
        if limit is not None and len(points) >= limit and not all(point.rejected for point in points):
            break
        points.append(_estimate_point(program, swept, result, index, targets=targets))
    return points


def best_points(points: Sequence[SweptPoint], number: int) -> list[SweptPoint]:
    """Return the points of runs that start, the least pipeline waiting first, then the least memory per rank."""
    unknown = float("inf")

    def rank(point: SweptPoint) -> tuple[float, float]:
        waiting, size = (point.statistics[name] for name in ("bubble_fraction", "bytes_per_rank"))
        return (unknown if waiting is None else waiting, unknown if size is None else size)

    return sorted((point for point in points if not point.rejected), key=rank)[:number]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweptRequest:
    """Request whose fields can have several values; its configuration contains the first value of each."""

    request: ConfigRequest
    variations: Sequence[Variation]


def read_swept(reader: RequestReader, given: CommandInput) -> SweptRequest:
    """Read a request whose fields can have several values.

    Precedence, low to high: recipe, files in order, overrides. A field that is set again later is not swept over.

    Raises:
        ConfigReadError: Settings cannot be read; contains all errors.
    """
    recipe, overrides = reader.split(given.arguments)
    with TemporaryDirectory() as folder:
        found: dict[str, Variation] = {}
        reduced = []
        for number, file in enumerate([Path(recipe), *given.files]):
            path, several = _reduce_file(reader, file, Path(folder) / str(number))
            found |= {variation.path: variation for variation in several}
            reduced.append(path)
        first = recipe if reduced[0] == Path(recipe) else str(reduced[0])
        request = reader.read([first], files=reduced[1:])
    single, several = read_variations(overrides, request.config)
    for override in single:
        found.pop(override.lstrip("+~").partition("=")[0], None)
    found |= {variation.path: variation for variation in several}
    apply_overrides(
        request.config,
        [*single, *(variation.override(0) for variation in found.values())],
        section_factories=reader.section_factories,
        targets=reader.targets,
        provenance=request.provenance,
    )
    return SweptRequest(request=request, variations=list(found.values()))


def _reduce_file(reader: RequestReader, path: Path, folder: Path) -> tuple[Path, list[Variation]]:
    """Split a file into its single values and its swept fields.

    Returns:
        The file itself if it has no swept field, otherwise a copy in `folder` with the first value of each; and the
        swept fields.
    """
    if path.suffix not in (".yaml", ".yml") or not path.is_file():
        return path, []
    data, several = split_yaml(read_yaml(path).data, reader.container, targets=reader.targets)
    if not several:
        return path, []
    folder.mkdir()
    copied = folder / path.name
    copied.write_text(dump_yaml(data), encoding="utf-8")
    return copied, several


@dataclass(frozen=True, slots=True, kw_only=True)
class SweptPoint:
    """Variation that passes the rules, after it is resolved and planned."""

    values: Mapping[str, Any]
    """Path to value, as written by the user."""
    plan: ResourcePlan | None
    """Resource plan; None: the variation cannot be planned."""
    unplanned: str
    """Reason why it cannot be planned; empty if it is planned, or rejected."""
    problems: Sequence[Problem] = ()
    """Errors of the resolved configuration, including settings that resolving rejects."""

    def to_dict(self) -> dict[str, Any]:
        """Return the point as JSON data."""
        return {
            "values": dict(self.values),
            **self.statistics,
            "rejected_when_resolved": self.rejected,
        }

    @property
    def rejected(self) -> list[str]:
        """Ids of the rules that reject the resolved configuration."""
        return list(dict.fromkeys(problem.id for problem in self.problems))

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


def _estimate_point(
    program: ConfigProgram,
    swept: SweptRequest,
    result: SweepResult,
    index: tuple[int, ...],
    *,
    targets: Sequence[TargetMachine],
) -> SweptPoint:
    """Resolve, check and plan one variation."""
    request = replace(
        swept.request,
        config=copy.deepcopy(swept.request.config),
        provenance=copy.deepcopy(swept.request.provenance),
    )
    config, reader = request.config, program.reader
    overrides = [
        variation.override(number) for variation, number in zip(swept.variations, index, strict=False)
    ]
    apply_overrides(
        config,
        overrides,
        section_factories=reader.section_factories,
        targets=reader.targets,
        provenance=request.provenance,
    )
    target = targets[index[-1]] if len(targets) > 1 else targets[0]
    found = check_request(program, request, facts=program.gather_facts(target, config.env_vars))
    resources, unplanned = None, "" if found.errors else found.unresolved
    if found.resolved:
        try:
            resources = make_plan(
                config.sections(),
                world_size=target.world_size or 1,
                vocab_size=program.embedding_rows(config),
            )
        except PlanError as error:
            unplanned = "" if found.errors else str(error)
    return SweptPoint(
        values=_as_written(result, swept.variations, index),
        plan=resources,
        unplanned=unplanned,
        problems=found.errors,
    )


def _as_written(result: SweepResult, variations: Sequence[Variation], index: Sequence[int]) -> dict[str, Any]:
    """Return path to value at a point, as written by the user."""
    written = {variation.path: variation.values for variation in variations}
    return {
        axis.path: written.get(axis.path, axis.values)[number]
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
                    "example": _as_written(self.result, self.variations, group.first),
                }
                for group in self.result.rejected
            ],
            "rules": {
                name: {"message": problem.message, "why": problem.why, "fix": problem.fix}
                for name, problem in self.problems.items()
            },
        }


def _show(report: SweepReport) -> None:
    """Print tables of the points that pass and of the rejected ones, the rules, and the counts."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    if report.shown:
        console.print(_passing_table(report.result, report.shown))
    if report.result.rejected:
        console.print(_rejected_table(report.result, report.variations))
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
    for column in ("dp", "microbatches", f"{unit.name} per rank", "waiting", ""):
        table.add_column(column, justify="right")
    for point in points:
        replicas, microbatches, size, waiting = point.statistics.values()
        table.add_row(
            *(_text(value) for value in point.values.values()),
            _text(replicas, "?"),
            _text(microbatches, "?"),
            unit(size),
            "?" if waiting is None else f"{waiting:.1%}",
            f"rejected as resolved: {' '.join(point.rejected)}" if point.rejected else "",
        )
    return table


def _rejected_table(result: SweepResult, variations: Sequence[Variation]) -> Table:
    """Return a table with one row per group of points that the same rules reject."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("rejected", justify="right")
    table.add_column("by")
    table.add_column("for example")
    for group in result.rejected:
        example = _as_written(result, variations, group.first)
        table.add_row(
            f"{group.count:,}",
            " ".join(group.rules),
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
