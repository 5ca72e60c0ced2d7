"""Implementation of `mb sweep`: checks and plans many variations of a configuration. Needs no torch."""

import copy
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from mb_config import (
    Axis,
    PlanError,
    Problem,
    ResourcePlan,
    SweepResult,
    Variation,
    apply_overrides,
    read_variations,
    run_sweep,
    split_yaml,
    to_axes,
)
from mb_config.shell_line import reject_spaced
from mb_config.yaml_file import dump_yaml, read_yaml
from mb_trainer.commands.errors import REFUSED, reported
from mb_trainer.commands.plan import GIB, MIB
from mb_trainer.commands.preflight import Target
from mb_trainer.config import TARGETS, ConfigContainer
from mb_trainer.planning import look_ahead
from mb_trainer.preflight import RULES, as_taken, inspect
from mb_trainer.reading import DEFAULT_RECIPE, Request, is_override, read_request
from mb_trainer.run_folder import folder_of, place
from mb_trainer.sweeping import WORLD, rules_at_points

SHORT = {
    WORLD: "processes",
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
    words: Sequence[str],
    *,
    files: Sequence[Path],
    out: Path | None,
    targets: Sequence[Target],
    limit: int | None,
    as_json: bool,
) -> int:
    """Print the variations that pass, and the rules that reject the others. Return 1 if none passes.

    Args:
        words: Recipe and overrides. A field with several values is swept over.
        files: Configuration files applied over the recipe. A list for a field that takes none is swept over, too.
        out: Run folder.
        targets: Machines to sweep over, which differ in their number of processes.
        limit: Maximum number of passing variations that are resolved, planned and shown; None: all.
        as_json: Print one JSON object.
    """

    def work() -> int:
        request, variations = read_swept(words, files=files)
        facts = targets[0].facts(request.config.env_vars)
        place(
            request.config,
            folder_of(out, name=request.name),
            request.provenance,
        )
        axes = to_axes(request.config, variations, targets=TARGETS)
        if len(targets) > 1:
            axes += (Axis(path=WORLD, values=tuple(target.world_size for target in targets)),)
        if not axes:
            print(NOTHING_VARIES, file=sys.stderr)
        result = run_sweep(
            {**request.config.sections(), "dist": as_taken(request.config.dist, facts)},
            axes,
            rules_at_points(RULES, request.config.model),
            facts=facts,
        )
        points: list[Point] = []
        for index in result.passing:
            if limit is not None and len(points) >= limit and not all(point.refused for point in points):
                break  # continue beyond the limit only while no resolved point has passed
            points.append(look_at(request, variations, result, index, targets=targets))
        if as_json:
            print(json.dumps(report(result, variations, points), indent=2))
        else:
            show(result, variations, points)
        return 0 if any(not point.refused for point in points) else REFUSED

    return reported(work)


def read_swept(words: Sequence[str], *, files: Sequence[Path]) -> tuple[Request, list[Variation]]:
    """Read a request whose fields can have several values. The request contains the first value of each.

    Precedence, low to high: recipe, files in order, words. A field that is set again later is not swept over.

    Raises:
        ConfigReadError: Settings cannot be read; the error lists all of them.
    """
    reject_spaced(words)
    named = bool(words) and not is_override(words[0])
    recipe, overrides = (words[0], words[1:]) if named else (DEFAULT_RECIPE, words)
    with TemporaryDirectory() as folder:
        found: dict[str, Variation] = {}
        reduced = []
        for number, file in enumerate([Path(recipe), *files]):
            path, several = reduce_file(file, Path(folder) / str(number))
            found |= {variation.path: variation for variation in several}
            reduced.append(path)
        first = recipe if reduced[0] == Path(recipe) else str(reduced[0])
        request = read_request([first], files=reduced[1:])
    single, several = read_variations(overrides, request.config)
    for word in single:
        found.pop(word.lstrip("+~").partition("=")[0], None)
    found |= {variation.path: variation for variation in several}
    apply_overrides(
        request.config,
        [*single, *(variation.override(0) for variation in found.values())],
        targets=TARGETS,
        provenance=request.provenance,
    )
    return request, list(found.values())


def reduce_file(path: Path, folder: Path) -> tuple[Path, list[Variation]]:
    """Split a file into its single values and its swept fields.

    Returns:
        The file itself if it has no swept field, otherwise a copy in `folder` with the first value of each; and the
        swept fields.
    """
    if path.suffix not in (".yaml", ".yml") or not path.is_file():
        return path, []
    data, several = split_yaml(read_yaml(path).data, ConfigContainer, targets=TARGETS)
    if not several:
        return path, []
    folder.mkdir()
    copied = folder / path.name
    copied.write_text(dump_yaml(data), encoding="utf-8")
    return copied, several


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Variation that passes the rules, after it is resolved and planned."""

    values: Mapping[str, Any]
    """Path to value, as written by the user."""
    plan: ResourcePlan | None
    """Resource plan; None: the variation cannot be planned."""
    problems: Sequence[Problem] = field(default=())
    """Errors of the resolved configuration, including settings that resolving rejects."""

    def to_dict(self) -> dict[str, Any]:
        """Return the point as JSON data."""
        return {
            "values": dict(self.values),
            **self.figures,
            "refused_when_resolved": self.refused,
        }

    @property
    def refused(self) -> list[str]:
        """Ids of the rules that reject the resolved configuration."""
        return list(dict.fromkeys(problem.id for problem in self.problems))

    @property
    def figures(self) -> dict[str, float | None]:
        """Statistics by which a point is chosen; None: not counted."""
        plan = self.plan
        return {
            "data_parallel_size": None if plan is None else plan.data_parallel_size,
            "num_microbatches": None if plan is None else plan.num_microbatches,
            "bytes_per_rank": None if plan is None else plan.peak.rank_bytes.total,
            "bubble_fraction": None if plan is None else plan.bubble_fraction,
        }


def look_at(
    request: Request,
    variations: Sequence[Variation],
    result: SweepResult,
    index: tuple[int, ...],
    *,
    targets: Sequence[Target],
) -> Point:
    """Resolve, inspect and plan one variation."""
    config, provenance = copy.deepcopy(request.config), copy.deepcopy(request.provenance)
    words = [variation.override(number) for variation, number in zip(variations, index, strict=False)]
    apply_overrides(config, words, targets=TARGETS, provenance=provenance)
    target = targets[index[-1]] if len(targets) > 1 else targets[0]
    findings = inspect(config, facts=target.facts(config.env_vars), provenance=provenance)
    try:
        plan = look_ahead(config, world_size=target.world_size).plan if findings.resolved else None
    except PlanError:
        plan = None
    return Point(
        values=as_written(result, variations, index),
        plan=plan,
        problems=findings.errors,
    )


def as_written(result: SweepResult, variations: Sequence[Variation], index: Sequence[int]) -> dict[str, Any]:
    """Return path to value at a point, as written by the user."""
    written = {variation.path: variation.values for variation in variations}
    return {
        axis.path: written.get(axis.path, axis.values)[number]
        for axis, number in zip(result.axes, index, strict=True)
    }


def report(result: SweepResult, variations: Sequence[Variation], points: Sequence[Point]) -> dict[str, Any]:
    """Return the results of the sweep as JSON data."""
    return {
        "points": result.total,
        "passing": len(result.passing),
        "resolved": len(points),
        "shown": [point.to_dict() for point in points],
        "refused": [
            {
                "rules": list(group.rules),
                "count": group.count,
                "example": as_written(result, variations, group.first),
            }
            for group in result.rejected
        ],
        "rules": {
            name: {"message": problem.message, "why": problem.why, "fix": problem.fix}
            for name, problem in all_problems(result, points).items()
        },
    }


def all_problems(result: SweepResult, points: Sequence[Point]) -> dict[str, Problem]:
    """Return each rule that rejects a point, as written or as resolved, with the first problem that it reports."""
    found = dict(result.problems)
    for problem in (problem for point in points for problem in point.problems):
        found.setdefault(problem.id, problem)
    return found


def show(result: SweepResult, variations: Sequence[Variation], points: Sequence[Point]) -> None:
    """Print tables of the points that pass and of the rejected ones, the rules, and the counts."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    if points:
        console.print(passing_table(result, points))
    if result.rejected:
        console.print(refused_table(result, variations))
    for name, problem in all_problems(result, points).items():
        console.print(f"{name}  {problem}", markup=False, soft_wrap=True)
    for line in counts(result, points):
        console.print(line)


def passing_table(result: SweepResult, points: Sequence[Point]) -> Table:
    """Return a table with one row per point: values, replicas, microbatches, memory and pipeline bubble."""
    unit = GIB if max(point.figures["bytes_per_rank"] or 0 for point in points) >= GIB.size else MIB
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for axis in result.axes:
        table.add_column(short(axis.path), justify="right")
    for column in ("dp", "microbatches", f"{unit.name} per rank", "waiting", ""):
        table.add_column(column, justify="right")
    for point in points:
        replicas, microbatches, size, waiting = point.figures.values()
        table.add_row(
            *(text(value) for value in point.values.values()),
            text(replicas, "?"),
            text(microbatches, "?"),
            unit(size),
            "?" if waiting is None else f"{waiting:.1%}",
            f"refused when resolved: {' '.join(point.refused)}" if point.refused else "",
        )
    return table


def refused_table(result: SweepResult, variations: Sequence[Variation]) -> Table:
    """Return a table with one row per group of points that the same rules reject."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("refused", justify="right")
    table.add_column("by")
    table.add_column("for example")
    for group in result.rejected:
        example = as_written(result, variations, group.first)
        table.add_row(
            f"{group.count:,}",
            " ".join(group.rules),
            " ".join(f"{short(path)}={text(value)}" for path, value in example.items()),
        )
    return table


def counts(result: SweepResult, points: Sequence[Point]) -> Iterator[str]:
    """Yield the number of points of each kind, including those that are not shown."""
    refused = sum(group.count for group in result.rejected)
    yield f"{result.total:,} points: {len(result.passing):,} pass the rules, {refused:,} are refused"
    later = sum(bool(point.refused) for point in points)
    if points:
        more = f", {later:,} of them refused then" if later else ""
        yield f"{len(points):,} of those that pass were resolved and are shown{more}"
    if len(points) < len(result.passing):
        more = f"{len(result.passing) - len(points):,} more pass as written and were not resolved"
        yield f"{more}: --limit N resolves and shows N, --limit 0 all"


def short(path: str) -> str:
    """Return the column title of a field."""
    return SHORT.get(path, path.rpartition(".")[2])


def text(value: object, unknown: str = "null") -> str:
    """Format a value as it is written on the command line."""
    if value is None:
        return unknown
    return str(value).lower() if isinstance(value, bool) else str(value)
