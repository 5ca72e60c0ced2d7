"""Arguments and options that several commands of `mb` share, and the lazy import of their implementations."""

from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any

import click
import typer

from mb_config.cli_options import ConfigFiles as ConfigFiles
from mb_config.cli_options import Json as Json
from mb_config.cli_options import Out as Out
from mb_config.cli_options import Processes as Processes
from mb_config.cli_options import read_run_folder as read_run_folder

RECIPE_ARGUMENTS = "A recipe's name or a YAML file (default: gpt_tiny), then overrides in Hydra's grammar."
Recipe = Annotated[
    list[str] | None,
    typer.Argument(metavar="RECIPE KEY=VALUE", help=RECIPE_ARGUMENTS, show_default=False),
]
NoNumaBinding = Annotated[
    bool,
    typer.Option(
        "--no-numa-binding",
        help="With --nproc: leave the processes on any CPU, not on those of their GPU's NUMA node.",
    ),
]
ResumeWithChanges = Annotated[
    bool, typer.Option("--resume-with-changes", help="Resume a run whose settings differ.")
]


def add_import_option(group: Any) -> None:
    """Give every command below a group the option --import, which adds the user's modules to the trainer's registry."""
    for each in group.commands.values():
        if hasattr(each, "commands"):
            add_import_option(each)
        else:
            each.params.append(
                click.Option(
                    param_decls=["--import"],
                    multiple=True,
                    is_eager=True,
                    expose_value=False,
                    callback=import_modules,
                    metavar="MODULE",
                    help="A module with your recipes, sections or rules, which is imported; repeatable.",
                )
            )


def import_modules(_context: Any, _parameter: Any, names: Sequence[str]) -> None:
    """Import modules, and add their recipes, dataclasses and rules to the registry.

    Raises:
        typer.BadParameter: a module cannot be imported, or a recipe of its name exists.
    """
    for name in names:
        try:
            import_module("mb_trainer.registry").REGISTRY.import_module(name)
        except ValueError as error:
            raise typer.BadParameter(str(error).removeprefix("--import ")) from error


def command(name: str) -> Any:
    """Import and return the module that implements a command. The modules of other commands are not loaded."""
    return import_module(f"mb_trainer.commands.{name}")
