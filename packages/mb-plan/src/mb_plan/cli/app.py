"""Command line `mb-plan`: what a run of a model needs on some GPUs. Requires the extra `cli`."""

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from mb_plan.cli.options import read_chart
from mb_schema.commands import CommandWithExample, exit_codes

app = typer.Typer(
    name="mb-plan", add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown"
)

SEQ_LENGTH = 4096
"""Tokens of a sequence where neither an option nor a file has a number."""
NEEDED = ("layers", "hidden", "heads", "vocab")
"""Options with sizes that every plan needs, where a file has none."""


def _size(help_text: str) -> Any:
    return typer.Option(min=1, metavar="N", help=help_text, show_default=False)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"mb-plan {import_module('importlib.metadata').version('mb-plan')}")
        raise typer.Exit


@app.command(cls=CommandWithExample, epilog="config.json --gpus 64xh100 --seq 8192 --tokens 15T")
def plan(  # noqa: PLR0913 - options of a command
    model: Annotated[
        Path | None,
        typer.Argument(
            metavar="MODEL",
            help="A config.json of Hugging Face, its folder, or YAML with Megatron's fields; or give --layers ...",
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
    precision: Annotated[str, typer.Option(metavar="bf16|fp8|fp4", help="Format of products.")] = "bf16",
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
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Print what a run needs before it starts: parameters, FLOPs, memory, step time, days, disk, the best layouts.

    Nothing is built, and torch is not needed. Parallel sizes that are not given are chosen: the fastest layout that
    fits is planned in full. The layers are those of Transformer Engine without recomputation, Adam is distributed.
    Exit code 1: no layout is possible, or none fits the memory.
    """
    with exit_codes():
        code = _run(
            model,
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


def _precision(text: str) -> str:
    if text not in ("bf16", "fp8", "fp4"):
        raise typer.BadParameter(f"{text!r} is none of bf16, fp8, fp4", param_hint="--precision")
    return text


def _run(
    path: Path | None,
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
    sources, runs = import_module("mb_plan.shape.sources"), import_module("mb_plan.sweep.run")
    report, step = import_module("mb_plan.cli.plan_report"), import_module("mb_plan.cli.step_report")
    if path is None and not any(size is not None for size in sizes.values()):
        raise typer.BadParameter("give a file, or sizes by hand (--layers, --hidden, --heads, --vocab)")
    file = sources.ModelFile(model=sources.CURRENT) if path is None else sources.read_model_file(path)
    model = {**file.model, **sources.fields_of_sizes(**sizes)}
    missing = [f"--{each}" for each in NEEDED if sources.read_field(model, sources.SIZES[each]) is None]
    if missing:
        raise typer.BadParameter(f"{path or 'the model'}: has not all sizes. Give {', '.join(missing)}")
    described["seq_length"] = described["seq_length"] or file.seq_length or SEQ_LENGTH
    described["global_batch_size"] = described["global_batch_size"] or file.global_batch_size
    name = _model_name(path)
    run = runs.describe_run(model, **described)
    of_file = {**model, "micro_batch_size": file.micro_batch_size}
    fixed = {field: of_file.get(field) if size is None else size for field, size in layout.items()}
    if model.get("num_moe_experts") and fixed["expert_tensor_parallel_size"] is None:
        fixed["expert_tensor_parallel_size"] = 1
    points = runs.best_layouts(
        run, fixed={field: size for field, size in fixed.items() if size is not None}, number=top
    )
    best = points[0]
    fitting = None if best.fits is not False else runs.fitting_change(run, best)
    if chart is not None:
        report.write_memory_chart(chart, best.plan, title=f"{name}: memory per GPU", gpu=run.gpu)
        if explained:
            file = chart.with_name(f"{chart.stem}-step.svg")
            report.write_step_chart(file, best.prediction, title=f"{name}: predicted step")
    if as_json:
        print(
            json.dumps(
                {
                    **best.plan.to_dict(),
                    "batch": run.global_batch_size,
                    "fits_with": None if fitting is None else fitting.to_dict(),
                    **_layouts_as_data(best, points),
                },
                indent=2,
            )
        )
    else:
        report.print_plan(best.plan, name=name or "model", gpu=run.gpu)
        step.print_prediction(best.prediction, precision_gpu=run.gpu, explained=explained)
        if best.fits is False:
            step.print_fitting(fitting)
        import_module("mb_plan.cli.sweep_report").print_layouts(points)
        if described["global_batch_size"] is None:
            print(f"planned for {run.global_batch_size:,} sequences in a step: --batch N", file=sys.stderr)
    for note in (*best.plan.notes, *best.prediction.notes):
        print(f"note: {note}", file=sys.stderr)
    return 1 if best.fits is False else 0


def _model_name(path: Path | None) -> str:
    """Return the name of the model for titles: the folder of a config.json, or the file."""
    if path is None:
        return "model"
    return path.parent.name if path.name == "config.json" else path.stem


def _layouts_as_data(best: Any, points: list[Any]) -> dict[str, Any]:
    return {
        "gpu": best.gpu,
        "fits": best.fits,
        "layout": dict(best.values),
        "predicted": best.prediction.to_dict(),
        "layouts": [point.to_dict() for point in points],
    }


def run() -> None:
    """Run the program `mb-plan`."""
    app(prog_name="mb-plan")
