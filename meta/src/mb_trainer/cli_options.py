"""Arguments and options that several commands of `mb` have, and how a command finds what does its work."""

import re
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer


def version(text: str | None) -> str | None:
    """Return a version as it was typed.

    Raises:
        typer.BadParameter: it does not begin with a number.
    """
    if text is not None and re.fullmatch(r"\d+(\.\d+)*(\.?[A-Za-z]+\d*)*(\+[\w.-]+)?", text) is None:
        raise typer.BadParameter(f"{text!r} is no version, such as 2.20")
    return text


Recipe = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="RECIPE KEY=VALUE",
        help="A recipe's name or a YAML file (default: gpt_tiny), then overrides in Hydra's grammar.",
        show_default=False,
    ),
]
ConfigFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--config", metavar="FILE", help="A YAML file laid over the recipe; repeatable, later wins."
    ),
]


def run_folder(written: str) -> Path:
    """Return the run folder as it was typed.

    Raises:
        typer.BadParameter: it is "", as in `--out "$RUN"` without RUN, which would be the current folder.
    """
    if not written:
        raise typer.BadParameter(
            "is empty, as where a shell's variable is not set. Give a folder, or . for this one."
        )
    return Path(written)


Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="DIR",
        parser=run_folder,
        help="Run folder; default runs/RECIPE.",
        show_default=False,
    ),
]
Processes = Annotated[
    int | None,
    typer.Option(
        "--nproc", min=1, metavar="N", help="Processes on this machine; default 1.", show_default=False
    ),
]
ResumeWithChanges = Annotated[
    bool, typer.Option("--resume-with-changes", help="Go on in a run folder although settings differ.")
]
WorldSize = Annotated[
    int | None,
    typer.Option("--world-size", min=1, metavar="N", help="Processes of the whole run, on any machines."),
]
Gpu = Annotated[
    str | None,
    typer.Option(
        "--gpu",
        metavar="NAME",
        help="GPU that the run is meant for: h100, b200, ...; default: this machine's.",
    ),
]
Engine = Annotated[
    str | None,
    typer.Option(
        "--te",
        metavar="VERSION",
        callback=version,
        help="Transformer Engine there, such as 2.20; default: what is here.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def command(name: str) -> Any:
    """Import the module behind a command; only the command that was asked for is loaded."""
    return import_module(f"mb_trainer.commands.{name}")
