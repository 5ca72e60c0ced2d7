"""The part of the command line on configurations: `mb recipes`, and the commands of mb-config with this trainer."""

from importlib import import_module

import typer

import mb_config.cli.app
from mb_config.cli.mounted_program import MountedProgram
from mb_trainer.cli.options import RECIPE_ARGUMENTS, command
from mb_trainer.cli.plans import plans

configs = typer.Typer()
configs.add_typer(mb_config.cli.app.checks)
configs.add_typer(plans)
configs.add_typer(mb_config.cli.app.configurations, name="config")

TRAINER = MountedProgram(
    load=lambda: import_module("mb_trainer.config_program").program(),
    exit_codes=lambda work: command("errors").reported(work),
    source="RECIPE",
    source_help=RECIPE_ARGUMENTS,
    example="gpt_tiny",
    run_folders=True,
)


@configs.command(epilog="Example: mb recipes")
def recipes() -> None:
    """List the recipes, one line each."""
    table = import_module("mb_trainer.registry").REGISTRY.recipes
    width = max(map(len, table))
    for name, recipe in table.items():
        print(f"{name:<{width}}  {recipe.summary}")
