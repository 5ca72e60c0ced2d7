"""Arguments and options that several commands of `mb` share, and the lazy import of their implementations."""

import re
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from mb_checkpoint.trust import trusted
from mb_config import UnknownGpuError, gpu_short_name
from mb_config.paths import expand_home, is_url


def version(text: str | None) -> str | None:
    """Return a version unchanged.

    Raises:
        typer.BadParameter: The text is not a version that begins with a number.
    """
    if text is not None and re.fullmatch(r"\d+(\.\d+)*(\.?[A-Za-z]+\d*)*(\+[\w.-]+)?", text) is None:
        raise typer.BadParameter(f"{text!r} is no version, such as 2.20")
    return text


def known_gpu(text: str | None) -> str | None:
    """Return the short name of a GPU.

    Raises:
        typer.BadParameter: The GPU is unknown.
    """
    try:
        return text and gpu_short_name(text, field="--gpu")
    except UnknownGpuError as error:
        raise typer.BadParameter(
            str(error).removeprefix("--gpu: ")
        ) from error  # typer adds the name of the option


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
    """Return the path of the run folder, with a leading `~` expanded.

    Raises:
        typer.BadParameter: The text is a URL, or empty. `--out "$RUN"` without RUN is empty, and would be the current
            folder.
    """
    if not written:
        raise typer.BadParameter(
            "is empty, as where a shell's variable is not set. Give a folder, or . for this one."
        )
    if is_url(written):
        raise typer.BadParameter(
            f"{written} is a URL, and would become a local folder. Name a local one, or one into which the storage is "
            "mounted on every node."
        )
    return Path(expand_home(written))


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
NoNumaBinding = Annotated[
    bool,
    typer.Option(
        "--no-numa-binding",
        help="With --nproc: leave the processes on any CPU, not on those of their GPU's NUMA node.",
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
        callback=known_gpu,
        help="GPU that the run is meant for: h100, b200, ... or as nvidia-smi prints it; default: this machine's.",
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


Apex = Annotated[
    bool,
    typer.Option(
        "--apex",
        help="With --gpu: Apex with its CUDA extensions is installed there; settings that need them are kept.",
    ),
]


def trust(context: typer.Context, folders: list[Path] | None) -> list[Path] | None:
    """Trust the folders until the command ends."""
    context.with_resource(trusted(*(folders or ())))
    return folders


Trust = Annotated[
    list[Path] | None,
    typer.Option(
        "--trust",
        metavar="DIR",
        callback=trust,
        help="Unpickle whatever legacy checkpoints in DIR hold: their authors can execute any code here; repeatable.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def command(name: str) -> Any:
    """Import and return the module that implements a command. The modules of other commands are not loaded."""
    return import_module(f"mb_trainer.commands.{name}")
