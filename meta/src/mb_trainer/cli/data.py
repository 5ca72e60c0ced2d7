"""Commands on data: `mb data`."""

from importlib import import_module
from typing import Annotated

import typer

from mb_config.cli.options import Json
from mb_data.cli import app as mb_data_app
from mb_data.cli.app import Workers
from mb_data.cli.options import StepOptions
from mb_schema.commands import CommandWithExample, common_options, exit_codes
from mb_trainer.cli.options import ConfigFiles, Recipe, command

data = typer.Typer(help=mb_data_app.app.info.help, no_args_is_help=True, rich_markup_mode="markdown")
data.add_typer(mb_data_app.documents)


@data.command(cls=CommandWithExample, epilog="--config run.yaml --workers 8", help=mb_data_app.index.__doc__)
def index(
    recipe: Recipe = None,
    config: ConfigFiles = None,
    world_size: Annotated[
        int | None, typer.Option("--world-size", min=1, metavar="N", help="Number of processes of the run.")
    ] = None,
    workers: Workers = 2,
    json: Json = False,
) -> None:
    """Build the corpus and the sample indices of a recipe."""
    with exit_codes():
        request = command("index_request").read_index_request(
            recipe or [], files=config or [], world_size=world_size
        )
        import_module("mb_data.cli.index").index(request, workers=workers, as_json=json)


@data.command(cls=CommandWithExample, epilog="runs/gpt_tiny --step 120", help=mb_data_app.at.__doc__)
@common_options
def at(options: StepOptions) -> None:
    """Print the data of one step of a run."""
    with exit_codes():
        position = import_module("mb_data.loading.step_batch").find_step(options.run, options.step)
        request = command("index_request").read_index_request([str(options.run / "run_config.yaml")])
        import_module("mb_data.cli.at").print_step(options, position, request)
