"""Command line `mb-checkpoint`: list, show, verify, compare and prune checkpoints. Requires the extra `cli`.

Each command imports its implementation, and with it torch, when it is called, so that `--help` is fast.
"""

from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from mb_checkpoint.errors import CheckpointNotFoundError, DamagedCheckpointError
from mb_checkpoint.formats.trust import trusted
from mb_schema.commands import CommandWithExample, exit_codes
from mb_schema.exit_codes import BAD_INPUT, FAILURE, message_of


def trust_folders(context: typer.Context, folders: list[Path] | None) -> list[Path] | None:
    """Trust the folders until the command ends."""
    context.with_resource(trusted(*(folders or ())))
    return folders


Trust = Annotated[
    list[Path] | None,
    typer.Option(
        "--trust",
        metavar="DIR",
        callback=trust_folders,
        exists=True,
        file_okay=False,
        help="Unpickle whatever legacy checkpoints in DIR hold: their authors can execute any code here; repeatable.",
        show_default=False,
    ),
]
"""Option of every command that reads checkpoints."""

_CHECKPOINT_HELP = "A run folder, its checkpoints, or one iter_* folder."
Checkpoint = Annotated[Path, typer.Argument(metavar="DIR", help=_CHECKPOINT_HELP, show_default=False)]
Root = Annotated[
    Path,
    typer.Argument(metavar="DIR", help="A run folder, or the checkpoints in it.", show_default=False),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Step = Annotated[
    int | None, typer.Option(min=0, metavar="N", help="Step; default: the newest.", show_default=False)
]

app = typer.Typer(
    help="Inspect checkpoints, and delete old ones.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)


def _message_of(error: Exception, *, damage: int) -> tuple[str, int] | None:
    if isinstance(error, DamagedCheckpointError):
        return str(error), damage
    return (str(error), BAD_INPUT) if isinstance(error, CheckpointNotFoundError) else message_of(error)


def _run(command: str, *arguments: Any, **options: Any) -> None:
    """Run a command of `cli_commands`, which returns the exit code.

    The exit code of damage is 1, except in `diff`, where 1 means that there is a difference.
    """
    with exit_codes(partial(_message_of, damage=BAD_INPUT if command == "diff" else FAILURE)):
        raise typer.Exit(getattr(import_module("mb_checkpoint.cli.commands"), command)(*arguments, **options))


@app.command(cls=CommandWithExample, epilog="runs/gpt_tiny")
def ls(root: Root, json: AsJson = False, _trust: Trust = None) -> None:
    """List the checkpoints, newest first: step, size, problems, and which one the trackers name.

    Exit code 1 if there are problems; only sizes are compared, so run `verify` to find damaged contents.
    """
    _run("ls", root, as_json=json)


@app.command(cls=CommandWithExample, epilog="runs/gpt_tiny --step 100")
def show(checkpoint: Checkpoint, step: Step = None, json: AsJson = False, _trust: Trust = None) -> None:
    """Show the contents of a checkpoint: counters, parallel layout, versions, tensors.

    Exit code 1 if it is damaged; without --step, damaged newer ones are skipped and listed.
    """
    _run("show", checkpoint, step=step, as_json=json)


@app.command(cls=CommandWithExample, epilog="runs/gpt_tiny")
def verify(checkpoint: Checkpoint, json: AsJson = False, _trust: Trust = None) -> None:
    """Read every file of every checkpoint and compare it with the manifest. Exit code 1 if there are problems."""
    _run("verify", checkpoint, as_json=json)


@app.command(cls=CommandWithExample, epilog="runs/a runs/b --values")
def diff(
    old: Annotated[Path, typer.Argument(metavar="OLD", help=_CHECKPOINT_HELP, show_default=False)],
    new: Annotated[Path, typer.Argument(metavar="NEW", help=_CHECKPOINT_HELP, show_default=False)],
    values: Annotated[bool, typer.Option("--values", help="Read and compare the tensors, too.")] = False,
    json: AsJson = False,
    _trust: Trust = None,
) -> None:
    """Print the differences between two checkpoints. Exit code 1 if there are any."""
    _run("diff", old, new, values=values, as_json=json)


@app.command(cls=CommandWithExample, epilog="runs/gpt_tiny --keep 2 --dry-run")
def prune(
    root: Root,
    keep: Annotated[int, typer.Option(min=1, metavar="K", help="Number of the newest to keep.")],
    retain_interval: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Keep multiples of N, too.", show_default=False)
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be deleted, and delete nothing.")
    ] = False,
    json: AsJson = False,
    _trust: Trust = None,
) -> None:
    """Delete old checkpoints; never one that a tracker names or that is being read."""
    _run("prune", root, keep=keep, retain_interval=retain_interval, dry_run=dry_run, as_json=json)


Url = Annotated[
    str,
    typer.Argument(
        metavar="URL", help="URL of a storage, such as s3://bucket/run, or a folder.", show_default=False
    ),
]


@app.command(cls=CommandWithExample, epilog="s3://bucket/run")
def stored(url: Url, json: AsJson = False) -> None:
    """List the complete checkpoints in a storage, newest first."""
    _run("stored", url, as_json=json)


@app.command(cls=CommandWithExample, epilog="runs/gpt_tiny s3://bucket/run")
def upload(checkpoint: Checkpoint, url: Url, step: Step = None, json: AsJson = False) -> None:
    """Copy a checkpoint to a storage, as a run with checkpoint.storage does; nothing is deleted there."""
    _run("upload", checkpoint, url, step=step, as_json=json)


@app.command(cls=CommandWithExample, epilog="s3://bucket/run runs/copy/checkpoints")
def fetch(
    url: Url,
    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="A run folder, or the checkpoints in it.", show_default=False),
    ],
    step: Step = None,
    json: AsJson = False,
) -> None:
    """Copy the newest intact checkpoint of a storage into a folder, from which a run resumes."""
    _run("fetch", url, folder, step=step, as_json=json)
