"""Text of a plan: a table of the pipeline stages, the statistics of the run, and charts as files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rich import box
from rich.table import Table

from mb_plan.cli.console import open_console, print_statistics, write_chart
from mb_plan.cli.step_report import MEANINGS
from mb_plan.memory.gpu_memory import GPU_MEMORY
from mb_plan.memory.memory_chart import render_memory_chart
from mb_plan.memory.resource_plan import ResourcePlan, StagePlan
from mb_plan.memory.vision_encoder import module_layout
from mb_plan.time.prediction import Prediction
from mb_plan.time.step_chart import render_step_chart

PARTS = ("weights", "gradients", "optimizer", "activations", "total")


def write_memory_chart(path: Path, plan: ResourcePlan, *, title: str, gpu: str | None) -> None:
    """Write the memory chart of a plan to an SVG file, and print its path on stderr."""
    memory = GPU_MEMORY.get(gpu or "")
    limit = None if memory is None else memory.size
    svg = render_memory_chart(plan, title=title, limit_bytes=limit, limit=gpu or "")
    write_chart(path, svg, name="memory chart")


def write_step_chart(path: Path, speed: Prediction, *, title: str) -> None:
    """Write the chart of the parts of a step to an SVG file, and print its path on stderr."""
    write_chart(path, render_step_chart(speed.parts, meanings=MEANINGS, title=title), name="step chart")


def print_plan(plan: ResourcePlan, *, name: str, gpu: str | None) -> None:
    """Print a table of the stages, then the statistics of the complete run."""
    console = open_console()
    unit = _unit_of(max(map(_counted_bytes, plan.stages)))
    console.print(f"[bold]{name}[/bold] on {_layout(plan)}; memory of one rank in {unit.name}")
    console.print(_stage_table(plan, unit))
    print_statistics(_statistics(plan, gpu=gpu))


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


def _layout(plan: ResourcePlan) -> str:
    """Return the parallel layout of the model as short text."""
    processes = "1 process" if plan.world_size == 1 else f"{plan.world_size:,} processes"
    shape, modules = plan.shape, module_layout(plan.shape)
    if modules is not None:
        sizes = modules.data_parallel(plan.world_size)
        parts = zip(
            ("encoder", "language model"), (modules.vision_tp, modules.language_tp), sizes, strict=True
        )
        return f"{processes} ({'; '.join(f'{name} tp {tp} dp {dp}' for name, tp, dp in parts)})"
    degrees = {
        "tp": shape.tp,
        "pp": shape.pp,
        "vp": shape.vp,
        "cp": shape.cp,
        "ep": shape.ep,
        "dp": plan.data_parallel_size,
    }
    shown = [f"{name} {size or '?'}" for name, size in degrees.items() if size != 1 or name == "dp"]
    return f"{processes} ({', '.join(shown)})"


def _stage_table(plan: ResourcePlan, unit: Unit) -> Table:
    """Return a table with one row per pipeline stage."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("stage", "layers", "parameters", "on a rank", *PARTS):
        table.add_column(column, justify="right")
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


def _statistics(plan: ResourcePlan, *, gpu: str | None) -> Iterator[tuple[str, str]]:
    """Yield the statistics of the complete run as (name, text)."""
    yield (
        "parameters",
        f"{plan.parameters:,} ({plan.active_parameters:,} active, {plan.embedding_parameters:,} in embeddings)",
    )
    if plan.adapter_parameters is not None:
        yield "trained", f"{plan.adapter_parameters:,} in adapters"
    yield "of these", _shares(plan.parts, plan.parameters)
    if plan.flops is not None and plan.flops_per_token is not None:
        shares = _shares(plan.flops_per_token, plan.flops)
        yield "work of a token", f"{format_flops(plan.flops)}: {shares}"
    if plan.flops_per_step is not None:
        yield "work of a step", f"{format_flops(plan.flops_per_step)} for {plan.tokens_per_step:,} tokens"
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
    need, overhead = plan.needed_bytes, plan.overhead
    if need is None:
        return f"not counted in full; {gpu} has {GIB(limit)} GiB"
    verdict = "fits" if need <= limit else "does not fit"
    return (
        f"{verdict}: {GIB(need)} of the {GIB(limit)} GiB of {gpu} ({need / limit:.0%}), of which an estimated "
        f"{GIB(overhead.cuda)} for CUDA, {GIB(overhead.nccl)} for NCCL and {GIB(overhead.fragmentation)} for "
        "fragmentation"
        + (f", {GIB(overhead.graphs)} for gradients in CUDA graphs" if overhead.graphs else "")
    )


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
