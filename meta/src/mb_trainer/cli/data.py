"""Commands on data: `mb data`."""

from typing import Annotated

import typer

import mb_config.trainer_api
import mb_data.trainer_api
from mb_config.trainer_api import Json
from mb_data.trainer_api import StepOptions, Workers
from mb_data.trainer_api import app as mb_data_app
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
    with exit_codes(mb_config.trainer_api.message_of):
        request = command("index_request").read_index_request(
            recipe or [], files=config or [], world_size=world_size
        )
        mb_data.trainer_api.index(request, workers=workers, as_json=json)


@data.command(cls=CommandWithExample, epilog="runs/gpt_tiny --step 120", help=mb_data_app.at.__doc__)
@common_options
def at(options: StepOptions) -> None:
    """Print the data of one step of a run."""
    with exit_codes(mb_config.trainer_api.message_of):
        position = mb_data.trainer_api.find_step(options.run, options.step)
        request = command("index_request").read_index_request([str(options.run / "run_config.yaml")])
        mb_data.trainer_api.print_step(options, position, request)
