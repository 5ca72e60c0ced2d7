"""Command line `mb`: parses arguments and returns exit codes. `mb_trainer.commands` implements the commands.

Each command imports its module when it is called, so that `mb --help` starts fast and `mb recipes` needs no torch.
"""

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from itertools import takewhile
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import mb_metrics.cli
from mb_trainer.cli_ckpt import ckpt
from mb_trainer.cli_config import configs
from mb_trainer.cli_data import data
from mb_trainer.cli_options import command
from mb_trainer.cli_runs import runs
from mb_trainer.cli_train import train
from mb_trainer.cli_weights import weights


class OverridesWithDashes(TyperGroup):
    """Command group that prints the corrected command line when an override is written as an option (`--key=value`)."""

    def main(self, args: Sequence[str] | None = None, *more: Any, **settings: Any) -> Any:
        """Run the command line. If an unknown option is an override, print the corrected command line as well."""
        words = [*takewhile(lambda word: word != "--", sys.argv[1:] if args is None else args)]
        try:
            return super().main(args, *more, **settings)
        except SystemExit as end:
            line = import_module("mb_config.shell_line").without_dashes(words) if end.code == USAGE else None
            if line is not None:
                print(f"error: an override has no dashes in front. Write mb {line}", file=sys.stderr)
            raise


USAGE = 2
"""Exit code of a command line that cannot be parsed."""

app = typer.Typer(
    name="mb",
    cls=OverridesWithDashes,
    help="Train language models with Megatron Core, on GPUs or on a laptop.",
    epilog="Start with: mb pretrain. It trains a small GPT on the Python sources of this machine in a few minutes.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
for part in (train, runs, configs, weights):
    app.add_typer(part)
app.add_typer(data, name="data")
app.add_typer(ckpt, name="ckpt")


def show_version(wanted: bool) -> None:
    """Print the versions and exit if `--version` is given."""
    if wanted:
        raise typer.Exit(command("version").version())


@app.callback()
def options(
    context: typer.Context,
    _version: Annotated[
        bool,
        typer.Option(
            "--version",
            is_eager=True,
            callback=show_version,
            help="Print the versions of the trainer, its packages, torch and Megatron Core.",
        ),
    ] = False,
) -> None:
    """Pass what mounted commands need from the trainer; `--version` is handled by its callback."""
    mb_metrics.cli.set_baseline_finder(context, lambda run: command("baseline").find_baseline(run))


def main() -> None:
    """Run the command line."""
    # torch warns when the package `pynvml` is installed. nvidia-resiliency-ext requires it: a user cannot change that
    warnings.filterwarnings("ignore", message="The pynvml package is deprecated", category=FutureWarning)
    sys.exit(app())
