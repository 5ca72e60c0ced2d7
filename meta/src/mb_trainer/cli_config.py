"""Command line for configurations: `mb recipes`, `check`, `plan`, `sweep`, `explain`, `config`."""

from pathlib import Path
from typing import Annotated

import typer

from mb_trainer.cli_options import (
    Apex,
    ConfigFiles,
    Engine,
    Gpu,
    Json,
    Out,
    Processes,
    Recipe,
    WorldSize,
    command,
)

configs = typer.Typer()
config_app = typer.Typer(help="Look at a configuration.", no_args_is_help=True)
configs.add_typer(config_app, name="config")


@configs.command(epilog="Example: mb recipes")
def recipes() -> None:
    """List the recipes, one line each."""
    raise typer.Exit(command("recipes").recipes())


@configs.command(
    epilog="Example: mb check gpt_tiny model.tensor_model_parallel_size=4 --world-size 64 --gpu h100"
)
def check(  # noqa: PLR0913 - options of a command
    recipe: Recipe = None,
    config: ConfigFiles = None,
    out: Out = None,
    nproc: Processes = None,
    world_size: WorldSize = None,
    gpu: Gpu = None,
    te: Engine = None,
    apex: Apex = False,
    as_json: Json = False,
) -> None:
    """Report every mistake of a configuration at once, for any number of processes and any GPU.

    Each problem has its rule, the values, the reason, what to do, and where the values came from. Nothing is built and
    nothing is written. Without --gpu the check is for this machine: where it has no Transformer Engine, settings that
    need it are refused. A recipe's value that the machine cannot honour is replaced as a run would replace it, and
    shown. Exit code 0: no rule refuses the run; 1: problems; 2: it could not be read.
    """
    preflight = command("preflight")
    target = preflight.Target(
        world_size=world_size or nproc or 1,
        gpu=gpu,
        transformer_engine=te,
        apex=apex,
        local_world_size=nproc,
    )
    raise typer.Exit(
        preflight.check(list(recipe or []), files=config or [], out=out, target=target, as_json=as_json)
    )


@configs.command(
    epilog="Example: mb plan gpt_tiny model.pipeline_model_parallel_size=2 --world-size 8 --gpu h100 --picture p.svg"
)
def plan(  # noqa: PLR0913 - options of a command
    recipe: Recipe = None,
    config: ConfigFiles = None,
    out: Out = None,
    nproc: Processes = None,
    world_size: WorldSize = None,
    gpu: Gpu = None,
    te: Engine = None,
    apex: Apex = False,
    picture: Annotated[
        Path | None,
        typer.Option(metavar="FILE.svg", help="Draw a bar for each pipeline stage.", show_default=False),
    ] = None,
    as_json: Json = False,
) -> None:
    """Say what a run will need: parameters, memory on each GPU, FLOPs, checkpoint size, pipeline waiting.

    Everything is computed from the configuration; nothing is built. Without --world-size it is planned for the fewest
    processes that hold the model. A configuration that `mb check` refuses is planned too, as far as it goes.
    """
    if picture is not None and picture.suffix.lower() != ".svg":
        raise typer.BadParameter("draws SVG: give a name that ends in .svg", param_hint="--picture")
    asked = {"world_size": world_size or nproc, "gpu": gpu, "transformer_engine": te, "picture": picture}
    asked["apex"] = apex
    raise typer.Exit(
        command("plan").plan(list(recipe or []), files=config or [], out=out, **asked, as_json=as_json)
    )


@configs.command(
    epilog="Example: mb sweep gpt_tiny model.tensor_model_parallel_size=1,2,4 train.micro_batch_size=1,2 --world-size 8"
)
def sweep(  # noqa: PLR0913 - options of a command
    recipe: Recipe = None,
    config: ConfigFiles = None,
    out: Out = None,
    world_size: Annotated[
        str,
        typer.Option(
            "--world-size", metavar="N[,N...]", help="Processes of the whole run; several are swept over."
        ),
    ] = "1",
    gpu: Gpu = None,
    te: Engine = None,
    apex: Apex = False,
    limit: Annotated[
        int, typer.Option(min=0, metavar="N", help="Passing points to resolve, plan and show; 0: all.")
    ] = 20,
    as_json: Json = False,
) -> None:
    """Check every combination of several values at once, and plan those that pass.

    A field is swept over where it is given several values: key=1,2,4 or key=range(1,5); or a list, in an override or in
    a YAML file, where the field takes no list: key=[1,2,4]. Where it takes one, the list is its value, and several
    lists are key=[1,2],[3].

    For points that are refused, the rules that refuse them are named; every point is counted. Exit code 1: none passes.
    """
    if not all(number.isdecimal() and int(number) > 0 for number in world_size.split(",")):
        raise typer.BadParameter(
            "must be a number above 0, or several with commas", param_hint="--world-size"
        )
    target = command("preflight").Target
    targets = [
        target(world_size=int(number), gpu=gpu, transformer_engine=te, apex=apex)
        for number in world_size.split(",")
    ]
    asked = {"files": config or [], "out": out, "targets": targets, "limit": limit or None}
    raise typer.Exit(command("sweep").sweep(list(recipe or []), **asked, as_json=as_json))


@configs.command(epilog="Example: mb explain V242")
def explain(
    rule: Annotated[str, typer.Argument(help="Its number, such as V242.", show_default=False)],
) -> None:
    """Explain a rule: why it is there, what to do, an example that it refuses and one that passes."""
    raise typer.Exit(command("preflight").explain(rule))


@config_app.command(epilog="Example: mb config show gpt_tiny optimizer.lr=1e-3 --origin")
def show(
    recipe: Recipe = None,
    config: ConfigFiles = None,
    out: Out = None,
    nproc: Processes = None,
    world_size: WorldSize = None,
    origin: Annotated[bool, typer.Option("--origin", help="Say where each value came from.")] = False,
) -> None:
    """Print the resolved configuration as YAML that loads back; secrets are masked."""
    preflight = command("preflight")
    target = preflight.Target(world_size=world_size or nproc or 1)
    raise typer.Exit(
        preflight.show(list(recipe or []), files=config or [], out=out, target=target, origin=origin)
    )
