"""Command line `mb-plan`: what a run of a model needs on some GPUs. Requires the extra `cli`."""

import json
import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from mb_plan.cli.console import read_chart
from mb_schema.commands import CommandWithExample, exit_codes, version_option

app = typer.Typer(
    name="mb-plan", add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown"
)


def _size(help_text: str) -> Any:
    return typer.Option(min=1, metavar="N", help=help_text, show_default=False)


class _CommandWithFlags(CommandWithExample):
    """Command with an argument that may consist of another program's flags, in quotation marks."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse; a word that contains several flags is no option."""
        return super().parse_args(ctx, [f" {word}" if _SEVERAL.match(word) else word for word in args])


_SEVERAL = re.compile(r"--\S+(\s.*)?\s--\w", re.DOTALL)


@app.command(cls=_CommandWithFlags, epilog="config.json --gpus 64xh100 --seq 8192 --tokens 15T")
def plan(  # noqa: PLR0913 - options of a command
    model: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL",
            help="A config.json of Hugging Face, its folder, YAML with Megatron's fields, or a command line of "
            "Megatron-LM in quotation marks or after --; or give --layers ...",
            show_default=False,
        ),
    ] = None,
    gpus: Annotated[str, typer.Option(metavar="NxGPU", help="Number and kind of GPUs.")] = "8xh100",
    seq: Annotated[int | None, _size("Tokens of a sequence; default: those of the file, or 4096.")] = None,
    tokens: Annotated[
        str | None,
        typer.Option(metavar="N", help="Tokens of the run, such as 15T or 300B.", show_default=False),
    ] = None,
    batch: Annotated[
        int | None, _size("Sequences of a step; default: those of the file, or about 4 million tokens.")
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(
            metavar="bf16|fp8|fp4",
            help="Format of products; default: that of a run, or bf16.",
            show_default=False,
        ),
    ] = None,
    tp: Annotated[int | None, _size("Tensor parallelism; sizes that are not given are chosen.")] = None,
    pp: Annotated[int | None, _size("Pipeline parallelism.")] = None,
    vp: Annotated[int | None, _size("Virtual pipeline stages of a rank.")] = None,
    cp: Annotated[int | None, _size("Context parallelism.")] = None,
    ep: Annotated[int | None, _size("Expert parallelism.")] = None,
    etp: Annotated[int | None, _size("Tensor parallelism of experts; default 1.")] = None,
    micro_batch: Annotated[int | None, _size("Sequences of a microbatch.")] = None,
    layers: Annotated[int | None, _size("Sizes by hand, or in place of those of the file: layers,")] = None,
    hidden: Annotated[int | None, _size("hidden size,")] = None,
    heads: Annotated[int | None, _size("attention heads,")] = None,
    kv_heads: Annotated[int | None, _size("heads of keys and values,")] = None,
    head_dim: Annotated[int | None, _size("width of a head,")] = None,
    ffn: Annotated[int | None, _size("inner width of an MLP,")] = None,
    vocab: Annotated[int | None, _size("vocabulary,")] = None,
    experts: Annotated[int | None, _size("experts of a layer,")] = None,
    top_k: Annotated[int | None, _size("experts of a token,")] = None,
    expert_ffn: Annotated[int | None, _size("inner width of an expert.")] = None,
    search: Annotated[
        bool,
        typer.Option("--search", help="Choose the parallel sizes of a run as well, in place of its own."),
    ] = False,
    top: Annotated[int, typer.Option(min=1, metavar="N", help="Layouts to show.")] = 5,
    chart: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.svg",
            help="Write a chart of the memory of each stage.",
            callback=read_chart,
            show_default=False,
        ),
    ] = None,
    explained: Annotated[
        bool, typer.Option("--explain", help="Print the parts of the predicted step.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    _version: Annotated[bool, version_option("mb-plan")] = False,
) -> None:
    """Print what a run needs before it starts: parameters, FLOPs, memory, step time, days, disk, the best layouts.

    Nothing is built, and torch is not needed. A run, which has a micro-batch size, is planned as it is, with Megatron's
    defaults. Of a model, parallel sizes that are not given are chosen: the fastest layout that fits is planned in full;
    the layers are those of Transformer Engine without recomputation, Adam is distributed.
    Exit code 1: no layout is possible, or none fits the memory.
    """
    with exit_codes():
        code = _run(
            model or [],
            sizes={
                "layers": layers,
                "hidden": hidden,
                "heads": heads,
                "kv_heads": kv_heads,
                "head_dim": head_dim,
                "ffn": ffn,
                "vocab": vocab,
                "experts": experts,
                "top_k": top_k,
                "expert_ffn": expert_ffn,
            },
            described={
                "gpus": gpus,
                "seq_length": seq,
                "tokens": tokens,
                "global_batch_size": batch,
                "precision": _precision(precision),
                "search": search,
            },
            layout={
                "tensor_model_parallel_size": tp,
                "pipeline_model_parallel_size": pp,
                "virtual_pipeline_model_parallel_size": vp,
                "context_parallel_size": cp,
                "expert_model_parallel_size": ep,
                "expert_tensor_parallel_size": etp,
                "micro_batch_size": micro_batch,
            },
            top=top,
            chart=chart,
            explained=explained,
            as_json=as_json,
        )
    raise typer.Exit(code)


def _precision(text: str | None) -> str | None:
    if text is not None and text not in ("bf16", "fp8", "fp4"):
        raise typer.BadParameter(f"{text!r} is none of bf16, fp8, fp4", param_hint="--precision")
    return text


def _run(
    words: list[str],
    *,
    sizes: dict[str, int | None],
    described: dict[str, Any],
    layout: dict[str, int | None],
    top: int,
    chart: Path | None,
    explained: bool,
    as_json: bool,
) -> int:
    """Plan and print; return the exit code."""
    runs = import_module("mb_plan.sweep.run")
    report, step = import_module("mb_plan.cli.plan_report"), import_module("mb_plan.cli.step_report")
    fixed = {field: size for field, size in layout.items() if size is not None}
    source = _source(words, sizes)
    run = runs.describe_run(source, **described)
    points = runs.best_layouts(run, fixed=fixed, number=top)
    best = points[0]
    batch = best.plan.tokens_per_step // run.seq_length
    fitting = None if best.fits is not False else runs.fitting_change(run, best)
    if chart is not None:
        report.write_memory_chart(chart, best.plan, title=f"{source.name}: memory per GPU", gpu=run.gpu)
        if explained and best.prediction is not None:
            file = chart.with_name(f"{chart.stem}-step.svg")
            report.write_step_chart(file, best.prediction, title=f"{source.name}: predicted step")
    if as_json:
        print(
            json.dumps(
                {
                    **best.plan.to_dict(),
                    "batch": batch,
                    "fits_with": None if fitting is None else fitting.to_dict(),
                    "gpu": best.gpu,
                    "fits": best.fits,
                    "layout": dict(best.values),
                    "predicted": None if best.prediction is None else best.prediction.to_dict(),
                    "not_predicted": best.unpredicted,
                    "layouts": [point.to_dict() for point in points],
                    "notes": [*run.notes, *best.plan.notes],
                },
                indent=2,
            )
        )
    else:
        report.print_plan(best.plan, name=source.name, gpu=run.gpu)
        if best.prediction is None:
            print(f"step             not predicted: {best.unpredicted}")
        else:
            step.print_prediction(best.prediction, precision_gpu=run.gpu, explained=explained)
        if best.fits is False:
            step.print_fitting(fitting)
        import_module("mb_plan.cli.sweep_report").print_layouts(points)
        if run.assumed_batch:
            print(f"planned for {batch:,} sequences in a step: --batch N", file=sys.stderr)
    notes = () if best.prediction is None else best.prediction.notes
    for note in (*run.notes, *best.plan.notes, *notes):
        print(f"note: {note}", file=sys.stderr)
    return 1 if best.fits is False else 0


def _source(words: list[str], sizes: dict[str, int | None]) -> Any:
    """Return what a file, a command line or options have of the run; sizes by hand take the place of its own."""
    sources, lines = import_module("mb_plan.shape.sources"), import_module("mb_plan.megatron_lm.command_line")
    if not words and not sources.fields_of_sizes(**sizes):
        raise typer.BadParameter(
            "give a file, a command line, or sizes by hand (--layers, --hidden, --heads, --vocab)"
        )
    if not words:
        source = sources.RunSource(sections={"model": sources.CURRENT})
    elif len(words) > 1 or lines.is_command_line(words[0]):
        source = sources.read_command_line(words[0] if len(words) == 1 else words)
    else:
        source = sources.read_file(Path(words[0]))
    source = source.with_sizes(**sizes)
    missing = [f"--{name}" for name in source.missing]
    if missing:
        raise typer.BadParameter(
            f"{words[0] if words else 'the model'}: has not all sizes. Give {', '.join(missing)}"
        )
    return source


def run() -> None:
    """Run the program `mb-plan`."""
    app(prog_name="mb-plan")
