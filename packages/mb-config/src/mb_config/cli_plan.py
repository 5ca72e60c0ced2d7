"""Command `plan`: parameters, memory, FLOPs and pipeline bubble of a run."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from mb_config.cli.check import CommandInput
from mb_config.cli.listing import counted
from mb_config.cli.program import ConfigProgram, check_request, machine_of_perf
from mb_config.cli_prediction import MEANINGS, print_prediction
from mb_config.plan.errors import PlanError
from mb_config.plan.gpu_memory import GPU_MEMORY
from mb_config.plan.memory_chart import render_memory_chart
from mb_config.plan.model_shape import read_field, smallest_world
from mb_config.plan.resource_plan import ResourcePlan, StagePlan
from mb_config.predict.prediction import Prediction, predict
from mb_config.predict.step_chart import render_step_chart
from mb_config.preflight.facts import TargetMachine
from mb_config.preflight.module_layouts import has_parallelism_per_module, module_layouts
from mb_config.preflight.problems import ConfigError
from mb_config.preflight.run import missing_sections
from mb_config.run_estimate import RunEstimate, estimate_run
from mb_schema.exit_codes import DONE, FAILURE
from mb_schema.rules import Problem

PARTS = ("weights", "gradients", "optimizer", "activations", "total")


def plan(
    program: ConfigProgram,
    given: CommandInput,
    *,
    target: TargetMachine,
    chart: Path | None,
    explained: bool = False,
    as_json: bool,
) -> int:
    """Print the resources that a run needs. Return 1 if rules reject it, or if it does not fit the GPU.

    Args:
        program: Reader, rules, facts and the function that counts FLOPs.
        given: Recipe or file, and overrides.
        target: Machines; without a number of processes, the smallest one that holds the model.
        chart: SVG file for a memory chart; with `explained` the parts of the step are drawn next to it.
        explained: Print the parts of the predicted step.
        as_json: Print one JSON object.

    Raises:
        ConfigError: The configuration cannot be resolved.
        PlanError: The model's sizes cannot be counted.
    """
    request = program.reader.read(given.arguments, files=given.files)
    config = request.config
    missing = missing_sections(request.sections)
    if missing:
        raise PlanError(f"the run cannot be planned, because {missing}. Add what is missing.")
    size = smallest_world(config.model) if target.world_size is None else target.world_size
    program.place(request, given.out)
    target = machine_of_perf(program, config, target)
    facts = program.gather_facts(replace(target, world_size=size), config.env_vars)
    result = check_request(program, request, facts=facts)
    if not result.resolved:
        raise ConfigError(result.errors or result.problems)
    estimate = _estimate(program, config, result.errors, world_size=size)
    if chart is not None:
        _write_chart(chart, estimate, title=f"{request.name}: memory per GPU", gpu=target.gpu)
    fits = fits_gpu(estimate.plan, target.gpu)
    speed, unpredicted = _predicted(program, config, estimate, gpu=target.gpu)
    if chart is not None and explained and speed is not None:
        _write_step_chart(
            chart.with_name(f"{chart.stem}-step.svg"), speed, title=f"{request.name}: predicted step"
        )
    if as_json:
        predicted = None if speed is None else speed.to_dict()
        print(
            json.dumps(
                {**estimate.to_dict(), "gpu": target.gpu, "fits": fits, "predicted": predicted}, indent=2
            )
        )
    else:
        _print_estimate(estimate, config, name=request.name, gpu=target.gpu)
        if speed is not None:
            print_prediction(speed, precision_gpu=target.gpu or "", explained=explained)
    for line in _remarks(
        program, estimate, problems=len(result.errors), gpu=target.gpu, assumed=target.world_size is None
    ):
        print(line, file=sys.stderr)
    for note in (unpredicted,) if speed is None else speed.notes:
        if note:
            print(f"note: {note}", file=sys.stderr)
    return FAILURE if result.errors or fits is False else DONE


def _estimate(
    program: ConfigProgram, config: Any, errors: Sequence[Problem], *, world_size: int
) -> RunEstimate:
    """Estimate a resolved configuration.

    Raises:
        ConfigError: The model's sizes depend on data that cannot be read; contains the errors about that data.
        PlanError: The model's sizes cannot be counted.
    """
    try:
        return estimate_run(
            config,
            world_size=world_size,
            vocab_size=program.embedding_rows(config),
            count_flops=program.count_flops,
        )
    except PlanError:
        read = program.checks.data_facts
        unread = [problem for problem in errors if read.intersection(problem.fields)]
        if unread:  # without the tokenizer the size of the embedding is unknown
            raise ConfigError(unread) from None
        raise


def _predicted(
    program: ConfigProgram, config: Any, estimate: RunEstimate, *, gpu: str | None
) -> tuple[Prediction | None, str]:
    """Return the predicted step, or the reason why there is none; without a GPU there is neither."""
    if gpu is None:
        return None, ""
    try:
        return predict(config, estimate, gpu=gpu, vocab_size=program.embedding_rows(config)), ""
    except PlanError as error:
        return None, f"the time of a step is not predicted: {error}"


def _write_chart(path: Path, estimate: RunEstimate, *, title: str, gpu: str | None) -> None:
    """Write the memory chart of the plan to an SVG file, and print its path on stderr."""
    memory = GPU_MEMORY.get(gpu or "")
    limit = None if memory is None else memory.size
    path.parent.mkdir(parents=True, exist_ok=True)
    svg = render_memory_chart(estimate.plan, title=title, limit_bytes=limit, limit=gpu or "")
    path.write_text(svg, encoding="utf-8")
    print(f"memory chart written to {path}", file=sys.stderr)


def _write_step_chart(path: Path, speed: Prediction, *, title: str) -> None:
    """Write the chart of the parts of a step to an SVG file, and print its path on stderr."""
    path.write_text(render_step_chart(speed.parts, meanings=MEANINGS, title=title), encoding="utf-8")
    print(f"step chart written to {path}", file=sys.stderr)


def _print_estimate(estimate: RunEstimate, config: Any, *, name: str, gpu: str | None) -> None:
    """Print a table of the stages, then the statistics of the complete run."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    unit = _unit_of(max(map(_counted_bytes, estimate.plan.stages)))
    console.print(f"[bold]{name}[/bold] on {_layout(config, estimate)}; memory of one rank in {unit.name}")
    console.print(_stage_table(estimate, unit))
    for title, text in _statistics(estimate, gpu=gpu):
        console.print(f"{title:<17}{text}", soft_wrap=True)


@dataclass(frozen=True, slots=True)
class Unit:
    """Unit of memory."""

    name: str
    size: int

    def __call__(self, size: float | None) -> str:
        """Format a number of bytes in this unit; "?" for a size that is not counted."""
        return "?" if size is None else f"{size / self.size:,.2f}"


GIB, MIB = Unit("GiB", 2**30), Unit("MiB", 2**20)


def _unit_of(size: float) -> Unit:
    """Return GiB for sizes of at least one GiB, otherwise MiB."""
    return GIB if size >= GIB.size else MIB


def _counted_bytes(stage: StagePlan) -> int:
    """Return the sum of the counted parts of a rank's memory, in bytes."""
    return sum(getattr(stage.rank_bytes, kind) or 0 for kind in PARTS[:-1])


def _layout(config: Any, estimate: RunEstimate) -> str:
    """Return the parallel layout of the model as short text."""
    model, plan = config.model, estimate.plan
    processes = "1 process" if plan.world_size == 1 else f"{plan.world_size:,} processes"
    if has_parallelism_per_module(model):
        modules = module_layouts(model, world_size=plan.world_size)
        return f"{processes} ({'; '.join(f'{name} tp {tp} dp {dp}' for name, tp, dp in modules)})"
    sizes = {
        "tp": read_field(model, "tensor_model_parallel_size", 1),
        "pp": read_field(model, "pipeline_model_parallel_size", 1),
        "vp": read_field(model, "virtual_pipeline_model_parallel_size") or 1,
        "cp": read_field(model, "context_parallel_size", 1),
        "ep": read_field(model, "expert_model_parallel_size", 1),
        "dp": plan.data_parallel_size,
    }
    shown = [f"{name} {size or '?'}" for name, size in sizes.items() if size != 1 or name == "dp"]
    return f"{processes} ({', '.join(shown)})"


def _stage_table(estimate: RunEstimate, unit: Unit) -> Table:
    """Return a table with one row per pipeline stage."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("stage", "layers", "parameters", "on a rank", *PARTS):
        table.add_column(column, justify="right")
    plan = estimate.plan
    for number, stage in enumerate(plan.stages):
        fullest = number == plan.peak_stage and len(plan.stages) > 1
        table.add_row(
            f"fullest {number}" if fullest else str(number),
            str(stage.layers),
            f"{stage.parameters:,}",
            f"{stage.rank_parameters:,}",
            *(unit(getattr(stage.rank_bytes, kind)) for kind in PARTS),
            style="bold" if fullest else None,
        )
    return table


def _statistics(estimate: RunEstimate, *, gpu: str | None) -> Iterator[tuple[str, str]]:
    """Yield the statistics of the complete run as (name, text)."""
    plan = estimate.plan
    yield (
        "parameters",
        f"{plan.parameters:,} ({plan.active_parameters:,} active, {plan.embedding_parameters:,} in embeddings)",
    )
    yield "of these", _shares(plan.parts, plan.parameters)
    if estimate.flops is not None:
        total = estimate.flops.total
        yield "work of a token", f"{format_flops(total)}: {_shares(estimate.flops.parts, total)}"
    if estimate.flops_per_step is not None:
        yield "work of a step", f"{format_flops(estimate.flops_per_step)} for {plan.tokens_per_step:,} tokens"
    if plan.num_microbatches is not None:
        waits = plan.bubble_fraction
        waiting = "" if waits is None else f"; pipeline stages wait {waits:.1%} of a step"
        yield "microbatches", f"{plan.num_microbatches:,} on each replica{waiting}"
    if plan.checkpoint_bytes is not None:
        unit = _unit_of(plan.checkpoint_bytes)
        yield "checkpoint", f"{unit(plan.checkpoint_bytes)} {unit.name}"
    if plan.host_bytes:
        yield "on the host", f"{GIB(plan.host_bytes)} GiB of optimizer state for each rank"
    if gpu is not None and gpu in GPU_MEMORY:
        yield "memory", _fit(plan, gpu)


def _fit(plan: ResourcePlan, gpu: str) -> str:
    """Return text that states whether the stage with the highest memory use fits the GPU, with the overhead."""
    limit = GPU_MEMORY[gpu].size
    need, more = plan.needed_bytes, plan.overhead
    if need is None:
        return f"not counted in full; {gpu} has {GIB(limit)} GiB"
    verdict = "fits" if need <= limit else "does not fit"
    return (
        f"{verdict}: {GIB(need)} of the {GIB(limit)} GiB of {gpu} ({need / limit:.0%}), of which an estimated "
        f"{GIB(more.cuda)} for CUDA, {GIB(more.nccl)} for NCCL and {GIB(more.fragmentation)} for fragmentation"
    )


def fits_gpu(plan: ResourcePlan, gpu: str | None) -> bool | None:
    """Return whether the stage with the highest memory use fits the GPU; None if one of the two is not known."""
    memory, need = GPU_MEMORY.get(gpu or ""), plan.needed_bytes
    return None if memory is None or need is None else need <= memory.size


def _shares(parts: Mapping[str, float], total: float) -> str:
    """Return the parts as percentages, the largest first."""
    ordered = sorted(parts.items(), key=lambda part: -part[1])
    return ", ".join(f"{name.replace('_', ' ')} {number / total:.1%}" for name, number in ordered)


def format_flops(number: float) -> str:
    """Format a number of floating-point operations with an SI prefix."""
    for prefix in ("", "k", "M", "G", "T", "P", "E"):
        if number < 1000:
            return f"{number:.3g} {prefix}FLOP"
        number /= 1000
    return f"{number:,.0f} ZFLOP"


def _remarks(
    program: ConfigProgram, estimate: RunEstimate, *, problems: int, gpu: str | None, assumed: bool
) -> Iterator[str]:
    """Yield the remarks that follow the statistics, on stderr."""
    if problems:
        yield f"{counted(problems, 'problem')}, see {program.name} check: a run would be rejected"
    if assumed:
        yield f"planned for the fewest processes that hold the model, {estimate.plan.world_size}: pass --world-size"
    for note in estimate.notes:
        yield f"note: {note}"
    if gpu is not None and gpu not in GPU_MEMORY:
        yield f"note: the memory of {gpu} is not known; known are {', '.join(GPU_MEMORY)}"
