"""The part of the command line that reads runs: `mb sample`, and `report` and `watch` of mb-metrics."""

import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

import mb_metrics.cli
from mb_checkpoint.cli import Trust
from mb_trainer.cli_options import command

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


runs.add_typer(mb_metrics.cli.app)
