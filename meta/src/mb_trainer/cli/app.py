"""Program `mb`: its own commands, and those of the packages that it mounts.

Each command imports its implementation when it is called, so that `mb --help` starts fast and `mb recipes` needs no
torch.
"""

import sys
import warnings
from importlib import import_module
from typing import Annotated

import typer

from mb_checkpoint.trainer_api import app as mb_checkpoint_app
from mb_config.trainer_api import OverridesWithDashes, add_import_option
from mb_guard.trainer_api import diagnosis
from mb_schema.commands import version_option
from mb_schema.standard_streams import open_standard_streams
from mb_trainer.cli.configs import configs
from mb_trainer.cli.data import data
from mb_trainer.cli.launch import launch
from mb_trainer.cli.proof import proof
from mb_trainer.cli.runs import runs
from mb_trainer.cli.text import text
from mb_trainer.cli.train import train
from mb_trainer.cli.weights import weights

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
for part in (train, proof, text, runs, weights, configs, diagnosis):
    app.add_typer(part)
app.add_typer(data, name="data")
app.add_typer(mb_checkpoint_app.app, name="ckpt")
app.add_typer(launch, name="launch")


VERSION = version_option(
    "mb-trainer", pattern=r"mb-\w+", frameworks=("torch", "megatron-core", "transformer-engine")
)


@app.callback()
def options(
    _version: Annotated[bool, VERSION] = False,
) -> None:
    """Hold `--version`, which its callback handles."""


def main() -> None:
    """Run the command line."""
    open_standard_streams()
    # torch warns when the package `pynvml` is installed. nvidia-resiliency-ext requires it: a user cannot change that
    warnings.filterwarnings("ignore", message="The pynvml package is deprecated", category=FutureWarning)
    program = typer.main.get_command(app)
    add_import_option(program, lambda: import_module("mb_trainer.registry").REGISTRY)
    sys.exit(program())
