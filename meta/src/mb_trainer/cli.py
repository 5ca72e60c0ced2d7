"""The command line `mb`: arguments in, exit code out. The work is done in `mb_trainer.commands`.

Each command imports its module when it is called, so that `mb --help` answers at once and `mb recipes` needs no torch.
"""

import sys
from typing import Annotated

import typer

from mb_trainer.cli_ckpt import ckpt
from mb_trainer.cli_config import configs
from mb_trainer.cli_data import data
from mb_trainer.cli_options import command
from mb_trainer.cli_runs import runs
from mb_trainer.cli_train import train
from mb_trainer.cli_weights import weights

app = typer.Typer(
    name="mb",
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
    """Print the versions and end, where they were asked for."""
    if wanted:
        raise typer.Exit(command("version").version())


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            is_eager=True,
            callback=show_version,
            help="Print the versions of the trainer, its packages, torch and Megatron Core.",
        ),
    ] = False,
) -> None:
    """Hold what goes before a command; its help is the application's."""


def main() -> None:
    """Run the command line."""
    sys.exit(app())
