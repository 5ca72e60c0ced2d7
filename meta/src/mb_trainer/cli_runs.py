"""The part of the command line that reads runs: `mb sample`, `replay`, and `report` and `watch` of mb-metrics."""

import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

import mb_metrics.cli
from mb_checkpoint.cli import Trust
from mb_trainer.cli_options import Json, Processes, command, read_run_folder

runs = typer.Typer()


@runs.command(epilog='Example: mb sample runs/gpt_tiny --prompt "def " --tokens 80')
def sample(
    run: Annotated[Path, typer.Argument(help="A run folder.", show_default=False)],
    prompt: Annotated[str, typer.Option(help="Text to continue.")] = "def ",
    tokens: Annotated[int, typer.Option(min=1, help="Tokens to generate.")] = 120,
    temperature: Annotated[
        float, typer.Option(min=0.0, help="0 takes the likeliest token; higher is more varied.")
    ] = 0.8,
    seed: Annotated[int, typer.Option(help="Seed of the random choice.")] = 1234,
    trust: Trust = None,
) -> None:
    """Print text from the newest valid checkpoint of a run, so that a person sees what was learned."""
    if not prompt:
        raise typer.BadParameter(
            "must not be empty: the first token has to follow something", param_hint="--prompt"
        )

    def work() -> int:
        import_module(
            "mb_host"
        ).install()  # before megatron is imported; with a GPU it only corrects Megatron
        sample_run = import_module("mb_trainer.sampling").sample_run
        options = {"prompt": prompt, "tokens": tokens, "temperature": temperature, "seed": seed}
        for text in sample_run(run, **options, log=partial(print, file=sys.stderr)):
            print(text, end="", flush=True)
        print()
        return 0

    raise typer.Exit(command("errors").reported(work))


@runs.command(epilog="Example: mb replay runs/gpt_tiny --step 210")
def replay(
    run: Annotated[Path, typer.Argument(help="A run folder.", show_default=False)],
    step: Annotated[int, typer.Option(min=1, help="Number of the step.", show_default=False)],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Changed settings.", show_default=False)
    ] = None,
    nproc: Processes = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", parser=read_run_folder, help="Keep the run of the replay here."),
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="List all tensors, by layer.")] = False,
    as_json: Json = False,
) -> None:
    """Make a step of a run again, bit for bit, and print the norms of its weights, gradients and outputs by layer.

    It is made from the newest checkpoint before it, in a folder of its own: the run is only read. What was computed is
    compared with the metrics of the run. On GPUs equal bits need model.deterministic_mode=true in the run.

    Exit code 0: equal to the run; 1: different, or failed.
    """
    options = {"step": step, "out": out, "nproc": nproc, "full": full, "as_json": as_json}
    raise typer.Exit(command("replay").replay(run, overrides or [], **options))


runs.add_typer(mb_metrics.cli.app)
