"""The part of the command line that reads runs: `mb sample`, `eval`, `replay`, `report` and `watch`."""

from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

import mb_metrics.cli
from mb_checkpoint.cli import Trust
from mb_config.cli_options import common_options
from mb_metrics.run_folder import RunFolder
from mb_models.text_commands import add_text_commands
from mb_trainer.cli_options import command
from mb_verify.cli_options import ReplayOptions

runs = typer.Typer()


def text_runs() -> Any:
    """Return the module that samples and evaluates, which imports megatron."""
    import_module("mb_host").install()  # before megatron is imported; with a GPU it only corrects Megatron
    return import_module("mb_trainer.sampling")


add_text_commands(runs, runs=text_runs, reported=lambda work: command("errors").reported(work), trust=Trust)


@runs.command(epilog="Example: mb replay runs/gpt_tiny --step 210")
@common_options
def replay(
    run: Annotated[Path, typer.Argument(help="A run folder.", show_default=False)],
    options: ReplayOptions,
    overrides: Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE", show_default=False)] = None,
) -> None:
    """Make a step of a run again, bit for bit, and print the norms of its weights, gradients and outputs by layer.

    It is made from the newest checkpoint before it, in a folder of its own: the run is only read. What was computed is
    compared with the metrics of the run. On GPUs equal bits need model.deterministic_mode=true in the run.

    Exit code 0: equal to the run; 1: different, or failed.
    """
    raise typer.Exit(command("replay").replay(RunFolder(run), overrides or [], options))


runs.add_typer(mb_metrics.cli.app)
