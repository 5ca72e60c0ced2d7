"""The part of the command line that looks at runs: `mb sample`, `report`, `watch`."""

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from mb_trainer.cli_options import Trust, command

runs = typer.Typer()


class LogFormats(str, Enum):
    """Who wrote a log."""

    MB = "mb"
    MEGATRON_LM = "megatron-lm"
    MEGATRON_BRIDGE = "megatron-bridge"
    TORCHTITAN = "torchtitan"
    CLOUDAI = "cloudai"


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
    raise typer.Exit(
        command("sample").sample(run, prompt=prompt, tokens=tokens, temperature=temperature, seed=seed)
    )


@runs.command(epilog="Example: mb report runs/a runs/b --out compared.html")
def report(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="RUN", help="Run folders, or metrics.jsonl files.", show_default=False),
    ] = None,
    from_log: Annotated[
        list[Path] | None,
        typer.Option(
            "--from-log",
            metavar="FILE",
            exists=True,
            dir_okay=False,
            help="The log of another trainer; repeatable.",
        ),
    ] = None,
    log_format: Annotated[
        LogFormats | None,
        typer.Option(
            "--log-format", help="Who wrote the log; default: what its lines look like.", show_default=False
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.html",
            help="Default: report.html in the run folder. Its folder is made.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the figures; write no page without --out.")
    ] = False,
) -> None:
    """Write what happened in a run, or in several side by side, as one HTML file that needs no network.

    A run may be going on, or have been killed. Logs of Megatron-LM, Megatron-Bridge, torchtitan and mb are read, and
    the step-time lines that CloudAI reads.
    """
    if not runs and not from_log:
        raise typer.BadParameter("give a run folder, or a log with --from-log", param_hint="RUN")
    asked = {
        "logs": from_log or [],
        "log_format": log_format and log_format.value,
        "out": out,
        "as_json": as_json,
    }
    raise typer.Exit(command("report").report(runs or [], **asked))


@runs.command(epilog="Example: mb watch runs/gpt_tiny")
def watch(
    run: Annotated[Path, typer.Argument(help="A run folder, or a metrics.jsonl file.", show_default=False)],
    seconds: Annotated[float, typer.Option(min=0.1, help="Pause between two looks.")] = 2.0,
) -> None:
    """Show a run on the terminal while it goes on: progress, loss, speed, time left, events. Ctrl-C leaves it alone.

    Without a terminal it prints what is known now, once.
    """
    raise typer.Exit(command("watch").watch(run, seconds=seconds))
