"""Arguments and options that several commands of `mb` share, and the lazy import of their implementations."""

from importlib import import_module
from typing import Annotated, Any

import typer

from mb_config.cli.options import ConfigFiles as ConfigFiles
from mb_config.cli.options import Json as Json
from mb_config.cli.options import NoNumaBinding as NoNumaBinding
from mb_config.cli.options import Out as Out
from mb_config.cli.options import Processes as Processes
from mb_config.cli.options import ResumeWithChanges as ResumeWithChanges
from mb_config.cli.options import read_run_folder as read_run_folder

RECIPE_ARGUMENTS = "A recipe's name or a YAML file (default: gpt_tiny), then overrides in Hydra's grammar."
Recipe = Annotated[
    list[str] | None,
    typer.Argument(metavar="RECIPE KEY=VALUE", help=RECIPE_ARGUMENTS, show_default=False),
]


def command(name: str) -> Any:
    """Import and return the module that implements a command. The modules of other commands are not loaded."""
    return import_module(f"mb_trainer.commands.{name}")
