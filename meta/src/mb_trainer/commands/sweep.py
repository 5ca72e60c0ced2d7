"""Command `sweep`: checks and plans every combination of several values."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from mb_config import Variation, apply_overrides, read_variations, split_yaml, to_axes
from mb_config.trainer_api import (
    BASE,
    WORLD_SIZE,
    CommandInput,
    ConfigRequest,
    TargetMachine,
    base_of,
    dump_yaml,
    effective_dist,
    examine,
    read_yaml,
    rules_per_point,
    without_base,
)
from mb_plan import Axis, PlanError, SweepResult, layout_axes, make_plan, predict, run_sweep
from mb_plan.trainer_api import (
    AxisLike,
    SweepReport,
    SweptPoint,
    best_points,
    print_report,
    splits_sequences_where_possible,
    values_as_written,
    with_progress,
    write_sweep_chart,
)
from mb_schema.exit_codes import DONE, FAILURE
from mb_trainer.requests import READER, command_checks, embedding_rows, place_in_run_folder
from mb_trainer.run.preflight import target_facts

DEFAULT_NODE = 8
"""GPUs of a node where the GPU is not known."""
NOTHING_VARIES = (
    "nothing is swept over, so that this is one point: "
    "give a field several values, as in train.micro_batch_size=1,2, or --layouts for all parallel layouts"
)


def sweep(
    given: CommandInput,
    *,
    targets: Sequence[TargetMachine],
    limit: int | None,
    top: int | None = None,
    layouts: bool = False,
    chart: Path | None = None,
    as_json: bool,
) -> int:
    """Print the variations that pass, and the rules that reject the others. Return 1 if none passes.

    Args:
        given: See `sweep_points`, also for the following.
        targets: Machines.
        limit: Maximum number of passing variations.
        top: Number of the best points.
        layouts: Sweep over parallel layouts.
        chart: SVG file for a chart of memory and predicted time; needs a GPU.
        as_json: Print one JSON object.
    """
    points = sweep_points(given, targets=targets, limit=limit, top=top, layouts=layouts)
    if chart is not None:
        write_sweep_chart(chart, points.points, title=f"{points.name}: memory and predicted step")
    if as_json:
        print(json.dumps(points.to_dict(), indent=2))
    else:
        print_report(points)
    return DONE if any(not point.rejected for point in points.points) else FAILURE


def sweep_points(
    given: CommandInput,
    *,
    targets: Sequence[TargetMachine],
    limit: int | None = None,
    top: int | None = None,
    layouts: bool = False,
) -> SweepReport:
    """Check, resolve and plan every variation; progress is printed on stderr.

    Args:
        given: Recipe or file, and overrides. A field with several values is swept over; so is a list in a file for a
            field that takes none.
        targets: Machines to sweep over, which differ in their number of processes.
        limit: Maximum number of passing variations to show; None: all. Without a GPU no more are resolved and planned.
            With one, all are, and the best are shown first (`best_points`).
        top: Number of the best points to show (`best_points`), of those that are resolved; None: as `limit` states.
        layouts: Sweep over the parallel layouts of the model (`layout_axes`), too.
    """
    swept = read_swept(given)
    request, config = swept.request, swept.request.config
    place_in_run_folder(request, given)
    facts = target_facts(targets[0], config.env_vars)
    if layouts:
        swept = with_layouts(swept, targets=targets, node=facts.get("gpus_per_node"))
    axes: tuple[AxisLike, ...] = to_axes(
        config,
        swept.variations,
        section_factories=READER.section_factories,
        targets=READER.targets,
    )
    if len(targets) > 1:
        axes += (Axis(path=WORLD_SIZE, values=tuple(target.world_size for target in targets)),)
    if not axes:
        print(NOTHING_VARIES, file=sys.stderr)
    every = config.sections()
    sections = {name: every[name] for name in request.sections or every}
    if "dist" in sections:
        sections["dist"] = effective_dist(config.dist, facts)
    rules = rules_per_point(command_checks().rules, config.model)
    result = run_sweep(sections, axes, rules, facts=facts)
    if layouts:
        kept = [index for index in result.passing if splits_sequences_where_possible(result.values(index))]
        left_out = (
            f"{len(result.passing) - len(kept):,} with tensor and without sequence parallelism are left out"
        )
        print(f"resolving and planning {len(kept):,} layouts; {left_out}", file=sys.stderr)
        result = replace(result, passing=tuple(kept))
    # The best points are known only after all have been planned. Without a GPU they are shown in the order of the axes.
    sort = targets[0].gpu is not None and top is None
    points = _resolve_points(swept, result, targets=targets, limit=None if sort else limit)
    shown: Sequence[SweptPoint] = points
    if sort or top is not None:
        shown = best_points(points, limit if top is None else top)
    return SweepReport(
        name=request.name, result=result, variations=swept.variations, points=points, shown=shown
    )


def _resolve_points(
    swept: SweptRequest,
    result: SweepResult,
    *,
    targets: Sequence[TargetMachine],
    limit: int | None,
) -> list[SweptPoint]:
    """Resolve and plan the points that pass; beyond the limit only while no resolved point has passed."""
    points: list[SweptPoint] = []
    number = len(result.passing) if limit is None else min(limit, len(result.passing))
    for index in with_progress(result.passing, number):
        if limit is not None and len(points) >= limit and not all(point.rejected for point in points):
            break
        points.append(_estimate_point(swept, result, index, targets=targets))
    return points


@dataclass(frozen=True, slots=True, kw_only=True)
class SweptRequest:
    """Request whose fields can have several values; its configuration contains the first value of each."""

    request: ConfigRequest
    variations: Sequence[Variation]


def with_layouts(swept: SweptRequest, *, targets: Sequence[TargetMachine], node: object) -> SweptRequest:
    """Return the request with the parallel layouts of its model as further values, but for fields that are set.

    `node` is the number of GPUs that NVLink connects, if it is known.
    """
    set_paths = {variation.path for variation in swept.variations}
    added = layout_axes(
        swept.request.config.model,
        world_size=max(target.world_size or 1 for target in targets),
        node_gpus=node if isinstance(node, int) else DEFAULT_NODE,
        is_kept=lambda path: path in set_paths or swept.request.provenance.by_user(path),
    )
    return replace(
        swept,
        variations=[*swept.variations, *(Variation(path=axis.path, values=axis.values) for axis in added)],
    )


def read_swept(given: CommandInput) -> SweptRequest:
    """Read a request whose fields can have several values.

    Precedence, low to high: recipe, files in order, overrides. A field that is set again later is not swept over.

    Raises:
        ConfigReadError: Settings cannot be read; contains all errors.
    """
    recipe, overrides = READER.split(given.arguments, given.files)
    with TemporaryDirectory() as folder:
        variations: dict[str, Variation] = {}
        reduced = []
        for number, file in enumerate([Path(recipe), *given.files]):
            path, several = _reduce_file(file, Path(folder) / str(number))
            variations |= {variation.path: variation for variation in several}
            reduced.append(path)
        first = recipe if reduced[0] == Path(recipe) else str(reduced[0])
        request = READER.read([first], files=reduced[1:])
    single, several = read_variations(overrides, request.config)
    for override in single:
        variations.pop(override.lstrip("+~").partition("=")[0], None)
    variations |= {variation.path: variation for variation in several}
    apply_overrides(
        request.config,
        [*single, *(variation.override(0) for variation in variations.values())],
        section_factories=READER.section_factories,
        targets=READER.targets,
        provenance=request.provenance,
    )
    return SweptRequest(request=request, variations=list(variations.values()))


def _reduce_file(path: Path, folder: Path) -> tuple[Path, list[Variation]]:
    """Split a file into its single values and its swept fields.

    Returns:
        The file itself if it has no swept field, otherwise a copy in `folder` with the first value of each; and the
        swept fields.
    """
    if path.suffix not in (".yaml", ".yml") or not path.is_file():
        return path, []
    file, base = without_base(read_yaml(path)), base_of(path)
    data, several = split_yaml(file.data, READER.container, targets=READER.targets)
    if not several:
        return path, []
    if base is not None:  # the copy is in another folder
        data = {BASE: str(Path(base).absolute()) if Path(base).is_file() else base, **data}
    folder.mkdir()
    copied = folder / path.name
    copied.write_text(dump_yaml(data), encoding="utf-8")
    return copied, several


def _estimate_point(
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
    config = request.config
    overrides = [
        variation.override(number) for variation, number in zip(swept.variations, index, strict=False)
    ]
    apply_overrides(
        config,
        overrides,
        section_factories=READER.section_factories,
        targets=READER.targets,
        provenance=request.provenance,
    )
    target = targets[index[-1]] if len(targets) > 1 else targets[0]
    facts = target_facts(target, config.env_vars)
    examined = examine(request, command_checks(), facts=facts, target=target).result
    plan, prediction, unplanned = None, None, "" if examined.errors else examined.unresolved
    if examined.resolved:
        rows, sections = embedding_rows(config), config.sections()
        try:
            plan = make_plan(sections, world_size=target.world_size or 1, vocab_size=rows)
            if target.gpu is not None and not examined.errors:
                prediction = predict(sections, plan, gpu=target.gpu)
        except PlanError as error:
            unplanned = "" if examined.errors else str(error)
    return SweptPoint(
        values=values_as_written(result, swept.variations, index),
        plan=plan,
        unplanned=unplanned,
        prediction=prediction,
        gpu=target.gpu,
        problems=examined.errors,
    )
