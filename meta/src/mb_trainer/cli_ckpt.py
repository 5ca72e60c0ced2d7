"""Command line for checkpoints: `mb ckpt ls`, `show`, `verify`, `diff`, `prune`."""

from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from mb_trainer.cli_options import Trust

ckpt = typer.Typer(help="Look at checkpoints, and delete old ones.", no_args_is_help=True)

Folder = Annotated[
    Path,
    typer.Argument(
        metavar="DIR", help="A run folder, its checkpoints, or one iter_* folder.", show_default=False
    ),
]
Holder = Annotated[
    Path,
    typer.Argument(metavar="DIR", help="A run folder, or the checkpoints in it.", show_default=False),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Step = Annotated[
    int | None, typer.Option(min=0, metavar="N", help="Step; default: the newest.", show_default=False)
]


def work() -> Any:
    """Import the implementation of the commands, and return it."""
    return import_module("mb_trainer.commands.ckpt")


@ckpt.command(epilog="Example: mb ckpt ls runs/gpt_tiny")
def ls(folder: Holder, json: AsJson = False, trust: Trust = None) -> None:
    """List the checkpoints, newest first: step, size, which one a run would go on from, and what is wrong with any."""
    raise typer.Exit(work().ls(folder, as_json=json))


@ckpt.command(epilog="Example: mb ckpt show runs/gpt_tiny --step 100")
def show(folder: Folder, step: Step = None, json: AsJson = False, trust: Trust = None) -> None:
    """Show what a checkpoint holds: counters, layout, versions, tensors."""
    raise typer.Exit(work().show(folder, step=step, as_json=json))


@ckpt.command(epilog="Example: mb ckpt verify runs/gpt_tiny")
def verify(folder: Folder, json: AsJson = False, trust: Trust = None) -> None:
    """Read every file of every checkpoint and compare it with the manifest. Exit code 1 if anything is wrong."""
    raise typer.Exit(work().verify(folder, as_json=json))


@ckpt.command(epilog="Example: mb ckpt diff runs/a runs/b --values")
def diff(
    old: Folder,
    new: Folder,
    values: Annotated[bool, typer.Option("--values", help="Read and compare the tensors, too.")] = False,
    json: AsJson = False,
    trust: Trust = None,
) -> None:
    """Say in what two checkpoints differ. Exit code 1 if they do."""
    raise typer.Exit(work().diff(old, new, values=values, as_json=json))


@ckpt.command(epilog="Example: mb ckpt prune runs/gpt_tiny --keep 2 --dry-run")
def prune(
    folder: Holder,
    keep: Annotated[int, typer.Option(min=1, metavar="K", help="How many of the newest stay.")],
    retain_interval: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Multiples of N stay, too.", show_default=False)
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would go, and delete nothing.")
    ] = False,
    json: AsJson = False,
    trust: Trust = None,
) -> None:
    """Delete old checkpoints; never one that a tracker names or that is being read."""
    raise typer.Exit(
        work().prune(folder, keep=keep, retain_interval=retain_interval, dry_run=dry_run, as_json=json)
    )
