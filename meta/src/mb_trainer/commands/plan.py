"""Implementation of `mb plan`: parameters, memory, FLOPs and pipeline bubble of a run. Needs no model and no torch."""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from mb_config import GPU_MEMORY, ConfigError, PlanError, StagePlan, render_memory_chart, smallest_world
from mb_models import MimoModelConfig
from mb_models.mimo_config import module_ranks
from mb_trainer.commands.errors import REFUSED, reported
from mb_trainer.commands.preflight import Target, counted
from mb_trainer.config import ConfigContainer
from mb_trainer.planning import Outlook, look_ahead
from mb_trainer.preflight import inspect
from mb_trainer.reading import read_request
from mb_trainer.run_folder import folder_of, place

KINDS = ("weights", "gradients", "optimizer", "activations", "total")


def plan(  # noqa: PLR0913 - options of a command
    words: Sequence[str],
    *,
    files: Sequence[Path],
    out: Path | None,
    world_size: int | None,
    gpu: str | None,
    transformer_engine: str | None,
    apex: bool = False,
    picture: Path | None,
    as_json: bool,
) -> int:
    """Print the resources that a run needs, and write a memory chart if `picture` is given. Return the exit code."""

    def work() -> int:
        request = read_request(words, files=files)
        config = request.config
        world = world_size if world_size is not None else smallest_world(config.model)
        place(config, folder_of(out, name=request.name), request.provenance)
        target = Target(world_size=world, gpu=gpu, transformer_engine=transformer_engine, apex=apex)
        findings = inspect(config, facts=target.facts(config.env_vars), provenance=request.provenance)
        if not findings.resolved:
            raise ConfigError(findings.errors or findings.problems)
        try:
            outlook = look_ahead(config, world_size=world)
        except PlanError:
            unread = [problem for problem in findings.errors if problem.id == "D99"]
            if unread:  # without the tokenizer the size of the embedding is unknown
                raise ConfigError(unread) from None
            raise
        if picture is not None:
            write_picture(picture, outlook, title=f"{request.name}: memory per GPU", gpu=gpu)
        if as_json:
            print(json.dumps(outlook.to_dict(), indent=2))
        else:
            print_outlook(outlook, config, name=request.name, gpu=gpu)
        for line in remarks(outlook, problems=len(findings.errors), gpu=gpu, assumed=world_size is None):
            print(line, file=sys.stderr)
        return REFUSED if findings.errors else 0

    return reported(work)


def write_picture(path: Path, outlook: Outlook, *, title: str, gpu: str | None) -> None:
    """Write the memory chart of the plan to an SVG file."""
    memory = GPU_MEMORY.get(gpu or "")
    limit = None if memory is None else memory.size
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        render_memory_chart(outlook.plan, title=title, limit_bytes=limit, limit=gpu or ""), encoding="utf-8"
    )


def print_outlook(outlook: Outlook, config: ConfigContainer, *, name: str, gpu: str | None) -> None:
    """Print a table of the stages, then the statistics of the complete run."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    unit = unit_of(max(map(counted_bytes, outlook.plan.stages)))
    console.print(f"[bold]{name}[/bold] on {layout(config, outlook)}; memory of one rank in {unit.name}")
    console.print(stage_table(outlook, unit))
    for title, text in figures(outlook, gpu=gpu):
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


def unit_of(size: float) -> Unit:
    """Return GiB for sizes of at least one GiB, otherwise MiB."""
    return GIB if size >= GIB.size else MIB


def counted_bytes(stage: StagePlan) -> int:
    """Return the sum of the counted parts of a rank's memory, in bytes."""
    return sum(getattr(stage.rank_bytes, kind) or 0 for kind in KINDS[:-1])


def layout(config: ConfigContainer, outlook: Outlook) -> str:
    """Return the parallel layout of the model as short text."""
    model, plan = config.model, outlook.plan
    processes = "1 process" if plan.world_size == 1 else f"{plan.world_size:,} processes"
    if isinstance(model, MimoModelConfig) and model.has_module_layouts:
        return f"{processes} ({modules(model, plan.world_size)})"
    sizes = {
        "tp": model.tensor_model_parallel_size,
        "pp": model.pipeline_model_parallel_size,
        "vp": model.virtual_pipeline_model_parallel_size or 1,
        "cp": model.context_parallel_size,
        "ep": model.expert_model_parallel_size,
        "dp": plan.data_parallel_size,
    }
    shown = [f"{name} {size or '?'}" for name, size in sizes.items() if size != 1 or name == "dp"]
    return f"{processes} ({', '.join(shown)})"


def modules(model: MimoModelConfig, world_size: int) -> str:
    """Return the parallel layouts of encoder and language model as short text."""
    return "; ".join(
        f"{name} tp {ranks.tensor_parallel_size} dp {ranks.data_parallel_size}"
        for name, ranks in zip(
            ("encoder", "language model"), module_ranks(model, world_size=world_size), strict=True
        )
    )


def stage_table(outlook: Outlook, unit: Unit) -> Table:
    """Return a table with one row per pipeline stage."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("stage", "layers", "parameters", "on a rank", *KINDS):
        table.add_column(column, justify="right")
    plan = outlook.plan
    for number, stage in enumerate(plan.stages):
        fullest = number == plan.peak_stage and len(plan.stages) > 1
        table.add_row(
            f"fullest {number}" if fullest else str(number),
            str(stage.layers),
            f"{stage.parameters:,}",
            f"{stage.rank_parameters:,}",
            *(unit(getattr(stage.rank_bytes, kind)) for kind in KINDS),
            style="bold" if fullest else None,
        )
    return table


def figures(outlook: Outlook, *, gpu: str | None) -> Iterator[tuple[str, str]]:
    """Yield the statistics of the complete run as (name, text)."""
    plan = outlook.plan
    yield (
        "parameters",
        f"{plan.parameters:,} ({plan.active_parameters:,} active, {plan.embedding_parameters:,} in embeddings)",
    )
    yield "of these", shares(plan.parts, plan.parameters)
    if outlook.flops is not None:
        total = outlook.flops.total
        yield "work of a token", f"{flops(total)}: {shares(outlook.flops.parts, total)}"
    if outlook.flops_per_step is not None:
        yield "work of a step", f"{flops(outlook.flops_per_step)} for {plan.tokens_per_step:,} tokens"
    if plan.num_microbatches is not None:
        waits = plan.bubble_fraction
        waiting = "" if waits is None else f"; pipeline stages wait {waits:.1%} of a step"
        yield "microbatches", f"{plan.num_microbatches:,} on each replica{waiting}"
    if plan.checkpoint_bytes is not None:
        unit = unit_of(plan.checkpoint_bytes)
        yield "checkpoint", f"{unit(plan.checkpoint_bytes)} {unit.name}"
    if plan.host_bytes:
        yield "on the host", f"{GIB(plan.host_bytes)} GiB of optimizer state for each rank"
    if gpu is not None and gpu in GPU_MEMORY:
        yield "memory", fit(plan.peak, gpu)


def fit(stage: StagePlan, gpu: str) -> str:
    """Return text that states whether the stage with the highest memory use fits the GPU."""
    limit = GPU_MEMORY[gpu].size
    need = stage.rank_bytes.total
    if need is None:
        return f"not counted in full; {gpu} has {GIB(limit)} GiB"
    verdict = "fits" if need <= limit else "does not fit"
    return f"{verdict}: {GIB(need)} of the {GIB(limit)} GiB of {gpu} ({need / limit:.0%})"


def shares(parts: Mapping[str, float], whole: float) -> str:
    """Return the parts as percentages, the largest first."""
    ordered = sorted(parts.items(), key=lambda part: -part[1])
    return ", ".join(f"{name.replace('_', ' ')} {number / whole:.1%}" for name, number in ordered)


def flops(number: float) -> str:
    """Format a number of floating-point operations with an SI prefix."""
    for prefix in ("", "k", "M", "G", "T", "P", "E"):
        if number < 1000:
            return f"{number:.3g} {prefix}FLOP"
        number /= 1000
    return f"{number:,.0f} ZFLOP"


def remarks(outlook: Outlook, *, problems: int, gpu: str | None, assumed: bool) -> Iterator[str]:
    """Yield the remarks that follow the statistics, on stderr."""
    if problems:
        yield f"{counted(problems, 'problem')}, see mb check: the run would be refused as it is"
    if assumed:
        yield f"planned for the fewest processes that hold the model, {outlook.plan.world_size}: say --world-size"
    for note in outlook.notes:
        yield f"note: {note}"
    if gpu is not None and gpu not in GPU_MEMORY:
        yield f"note: the memory of {gpu} is not known; known are {', '.join(GPU_MEMORY)}"
    if gpu in GPU_MEMORY:
        yield "note: CUDA, NCCL and fragmentation take some more memory than is counted"
