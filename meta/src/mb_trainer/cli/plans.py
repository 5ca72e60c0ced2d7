"""The part of the command line that plans a run before it starts: `mb plan` and `mb sweep`."""

from pathlib import Path
from typing import Annotated

import typer

from mb_config.trainer_api import Json, MachineOptions, ProcessOptions, target_machine
from mb_plan.trainer_api import read_chart
from mb_schema.commands import CommandWithExample, common_options
from mb_trainer.cli.options import RecipeOptions, command, exit_with

SHOWN_POINTS = 20
"""Passing points of a sweep that are shown without an option."""

plans = typer.Typer()


def read_world_sizes(text: str) -> str:
    """Return numbers of processes, separated by commas, unchanged.

    Raises:
        typer.BadParameter: One is not a number above 0.
    """
    if not all(number.isdecimal() and int(number) > 0 for number in text.split(",")):
        raise typer.BadParameter("must be a number above 0, or several with commas")
    return text


WorldSizes = Annotated[
    str,
    typer.Option(
        metavar="N[,N...]",
        help="Processes of the whole run; several are swept over.",
        callback=read_world_sizes,
    ),
]
Limit = Annotated[
    int | None,
    typer.Option(
        min=0,
        metavar="N",
        help="Passing points to show; 0: all. Default 20; all with --top. Without --gpu no more are planned.",
        show_default=False,
    ),
]
Top = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Show the N best points that pass: fastest that fit with --gpu, else least pipeline waiting, then memory.",
        show_default=False,
    ),
]


@plans.command(
    cls=CommandWithExample,
    epilog="gpt_tiny model.pipeline_model_parallel_size=2 --world-size 8 --gpu h100 --chart p.svg",
)
@common_options
def plan(
    request: RecipeOptions,
    processes: ProcessOptions,
    machine: MachineOptions,
    chart: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.svg",
            help="Write a bar chart of the memory of each pipeline stage; folders are created.",
            callback=read_chart,
            show_default=False,
        ),
    ] = None,
    explained: Annotated[
        bool, typer.Option("--explain", help="With --gpu: print the parts of the predicted step as bars.")
    ] = False,
    write_gibs: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            metavar="GIBS",
            help="With --gpu: GiB/s that all nodes together write to the folder of checkpoints; default 0.5 for each.",
            show_default=False,
        ),
    ] = None,
    previous_chart: Annotated[
        Path | None, typer.Option("--picture", hidden=True, callback=read_chart)
    ] = None,
    as_json: Json = False,
) -> None:
    """Print what a run will need: parameters, memory on each GPU, FLOPs, checkpoint size; with --gpu its time.

    Everything is computed from the configuration; nothing is built. Without --world-size it is planned for the fewest
    processes that hold the model. A configuration that `check` rejects is planned too, as far as possible.
    """
    target = target_machine(machine, world_size=processes.world_size or processes.nproc)
    exit_with(
        lambda: command("plan").plan(
            request.command_input(),
            target=target,
            chart=chart or previous_chart,
            explained=explained,
            write_gibs=write_gibs,
            as_json=as_json,
        )
    )


@plans.command(
    cls=CommandWithExample,
    epilog="gpt_tiny model.tensor_model_parallel_size=1,2,4 train.micro_batch_size=1,2 --world-size 8",
)
@common_options
def sweep(
    request: RecipeOptions,
    machine: MachineOptions,
    world_size: WorldSizes = "1",
    limit: Limit = None,
    top: Top = None,
    layouts: Annotated[
        bool,
        typer.Option("--layouts", help="Sweep over all parallel layouts, but for sizes that you set."),
    ] = False,
    chart: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.svg",
            help="With --gpu: write a chart of memory and predicted time; folders are created.",
            callback=read_chart,
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check every combination of several values at once, and plan those that pass.

    A field is swept over if it has several values: key=1,2,4 or key=range(1,5); or a list, in an override or in
    a YAML file, if the field takes no list: key=[1,2,4]. If it takes one, the list is its value, and several
    lists are key=[1,2],[3].

    With --gpu the step of each point is predicted, and the fastest that fit the memory are shown first. With
    --layouts the fields are chosen: tensor, sequence, pipeline, virtual pipeline, context and expert parallelism
    and the micro-batch size, as in sweep llama31_70b --layouts --world-size 64 --gpu h100 --top 5.

    For points that are rejected, the rules that reject them are named; every point is counted. Exit code 1: none
    passes.
    """
    if chart is not None and machine.gpu is None:
        raise typer.BadParameter("a chart has predicted times: give --gpu", param_hint="--chart")
    if limit is None:
        limit = SHOWN_POINTS if top is None else 0
    targets = [target_machine(machine, world_size=int(number)) for number in world_size.split(",")]
    exit_with(
        lambda: command("sweep").sweep(
            request.command_input(),
            targets=targets,
            limit=limit or None,
            top=top,
            layouts=layouts,
            chart=chart,
            as_json=as_json,
        )
    )
