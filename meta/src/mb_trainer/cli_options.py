"""Arguments and options that several commands of `mb` share, and the lazy import of their implementations."""

from importlib import import_module
from typing import Annotated, Any

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


def import_modules(names: list[str] | None) -> list[str] | None:
    """Import modules, and add their recipes, dataclasses and rules to the registry.

    Raises:
        typer.BadParameter: a module cannot be imported, or a recipe of its name exists.
    """
    for name in names or ():
        try:
            import_module("mb_trainer.registry").REGISTRY.import_module(name)
        except ValueError as error:
            raise typer.BadParameter(str(error).removeprefix("--import ")) from error
    return names


_shared = typer.Typer()


@_shared.command()
def _shared_options(
    imports: Annotated[
        list[str] | None,
        typer.Option(
            "--import",
            metavar="MODULE",
            callback=import_modules,
            is_eager=True,
            expose_value=False,
            help="A module with your recipes, sections or rules, which is imported; repeatable.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Options that every command has; `add_shared_options` takes them from here."""


def add_shared_options(group: Any) -> None:
    """Give every command below a group the option --import, which adds the user's modules to the registry."""
    shared = [each for each in typer.main.get_command(_shared).params if each.name == "imports"]
    for each in group.commands.values():
        if hasattr(each, "commands"):
            add_shared_options(each)
        else:
            each.params.extend(shared)


def command(name: str) -> Any:
    """Import and return the module that implements a command. The modules of other commands are not loaded."""
    return import_module(f"mb_trainer.commands.{name}")
