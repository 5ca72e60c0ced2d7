"""The part of the command line on configurations: `mb recipes`, `check`, `explain`, `rules`, `config` and plans."""

from importlib import import_module
from typing import Annotated

import typer

from mb_config.trainer_api import (
    Json,
    MachineOptions,
    ProcessOptions,
    RuleFilter,
    ViewOptions,
    target_machine,
)
from mb_config.trainer_api import app as mb_config_app
from mb_schema.commands import CommandWithExample, common_options
from mb_trainer.cli.options import RecipeOptions, command, exit_with
from mb_trainer.cli.plans import plans

configs = typer.Typer()
config = typer.Typer(help="Look at a configuration, or import one.", no_args_is_help=True)


@configs.command(
    cls=CommandWithExample,
    epilog="gpt_tiny model.tensor_model_parallel_size=4 --world-size 64 --gpu h100",
    help=mb_config_app.check.__doc__,
)
@common_options
def check(
    request: RecipeOptions, processes: ProcessOptions, machine: MachineOptions, as_json: Json = False
) -> None:
    """Check a configuration by the rules of all packages."""
    target = target_machine(machine, **processes.numbers(default=1))
    exit_with(lambda: command("checks").check(request.command_input(), target=target, as_json=as_json))


@configs.command(cls=CommandWithExample, epilog="V242", help=mb_config_app.explain.__doc__)
def explain(
    rule: Annotated[str, typer.Argument(help="Its number, such as V242.", show_default=False)],
) -> None:
    """Explain a rule of any package."""
    exit_with(lambda: command("checks").explain(rule))


@configs.command(
    cls=CommandWithExample, epilog="sequence_parallel --field model", help=mb_config_app.rules.__doc__
)
@common_options
def rules(options: RuleFilter, as_json: Json = False) -> None:
    """List the rules of all packages."""
    exit_with(lambda: command("checks").rules(options, as_json=as_json))


configs.add_typer(plans)


@config.command(
    cls=CommandWithExample,
    epilog="gpt_tiny optimizer.lr=1e-3 --origin",
    help=mb_config_app.show.__doc__,
)
@common_options
def show(
    request: RecipeOptions, processes: ProcessOptions, machine: MachineOptions, view: ViewOptions
) -> None:
    """Print a resolved configuration."""
    target = target_machine(machine, **processes.numbers(default=1))
    exit_with(lambda: command("checks").show(request.command_input(), target=target, view=view))


config.add_typer(mb_config_app.imports)
configs.add_typer(config, name="config")


@configs.command(epilog="Example: mb recipes")
def recipes() -> None:
    """List the recipes, one line each."""
    table = import_module("mb_trainer.registry").REGISTRY.recipes
    width = max(map(len, table))
    for name, recipe in table.items():
        print(f"{name:<{width}}  {recipe.summary}")
