"""Commands `mb launch`: a run of `mb` on Slurm or through NeMo-Run, checked for its number of processes before."""

from collections.abc import Sequence
from dataclasses import fields, replace
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from mb_config.trainer_api import add_import_option
from mb_launch.trainer_api import (
    Command,
    JobOptions,
    LaunchOptions,
    LaunchSize,
    NemoRunOptions,
    SlurmJob,
    import_door,
    option,
)
from mb_launch.trainer_api import app as mb_launch_app
from mb_schema.commands import CommandWithExample, common_options, exit_codes
from mb_trainer.cli.options import command as implementation
from mb_trainer.cli.train import train

PROGRAM = "mb launch"

launch = typer.Typer(help=mb_launch_app.app.info.help, no_args_is_help=True, rich_markup_mode="markdown")


@launch.command(
    cls=CommandWithExample,
    epilog="--nodes 2 --gpus-per-node 8 -- pretrain llama31_8b",
    help=mb_launch_app.slurm.__doc__,
)
@common_options
def slurm(
    options: LaunchOptions,
    job_options: JobOptions,
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- COMMAND", help="Command of mb that each rank runs.", show_default=False),
    ] = None,
    cloudai: Annotated[
        Path | None,
        option("--cloudai", "Take command and resources from this test definition of CloudAI, in TOML."),
    ] = None,
) -> None:
    """Queue a run of `mb` on Slurm. With a test of CloudAI, words after -- are further arguments, which replace its."""
    with exit_codes():
        words, tested = command or [], {}
        if cloudai is not None:
            door = import_door("mb_launch.cloudai.slurm_run", needed_by="--cloudai", extra="cloudai")
            test = door.read_test(cloudai)
            words, tested = [*door.trainer_arguments(test), *words], door.job_settings(test)
        job = options.job({**tested, **job_options.given()})
        size = LaunchSize(
            nodes=job.nodes, ranks_per_node=job.ranks_per_node, gpu=job.gpu, ft_launcher=job.ft_launcher
        )
        launched = implementation("launch").rank_command(words, size, out=options.out, parse=parsed)
        if launched.stop is not None:
            job = with_predicted_stop(job, launched.stop)
        options.start(job, launched.words, launched.folder, program=PROGRAM)


def parsed(words: Sequence[str]) -> Any:
    """Return the words of a command of `mb` that trains, by the option that they belong to.

    Values are not converted: folders of the nodes need not exist here.

    Raises:
        click.UsageError: The command has no such option.
    """
    program: Any = typer.main.get_command(train)
    add_import_option(program, lambda: import_module("mb_trainer.registry").REGISTRY)
    command = program.commands[words[0]]
    context = command.context_class(command, info_name=f"mb {words[0]}")
    values, _, _ = command.make_parser(context).parse_args(args=[*words[1:]])
    record = implementation("launch").RunWords
    return record(**{item.name: values[item.name] for item in fields(record) if values.get(item.name)})


def with_predicted_stop(job: SlurmJob, stop: Any) -> SlurmJob:
    """Return the job with the time that a stop is predicted to take, where the user has not set it; print it."""
    lead = job.signal_seconds
    if lead is None and stop.lead_seconds > job.lead_seconds:
        lead = stop.lead_seconds
        typer.echo(
            f"--signal-seconds={lead}: two steps of {stop.step_seconds:.0f} s and a save of {stop.save_seconds} s, as "
            "predicted",
            err=True,
        )
    return replace(
        job,
        signal_seconds=lead,
        save_seconds=stop.save_seconds if job.save_seconds is None else job.save_seconds,
    )


@launch.command(
    "nemo-run",
    cls=CommandWithExample,
    epilog="--executor local --set ntasks_per_node=2 -- pretrain gpt_tiny",
    help=mb_launch_app.nemo_run.__doc__,
)
@common_options
def nemo_run(options: NemoRunOptions, command: Command) -> None:
    """Start a run of `mb` through an executor of NeMo-Run."""
    with exit_codes():
        executor, size = options.build()
        launched = implementation("launch").rank_command(command, size, out=options.out, parse=parsed)
        options.start(executor, size, launched.words, launched.folder, program=PROGRAM)


launch.add_typer(mb_launch_app.queued)
