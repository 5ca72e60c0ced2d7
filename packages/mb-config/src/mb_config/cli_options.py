"""Arguments and options of the commands, also for programs that mount them."""

import re
from pathlib import Path
from typing import Annotated

import typer

from mb_config._gpu_names import UnknownGpuError
from mb_config.paths import expand_home, is_url
from mb_config.rules.hardware import gpu_short_name


def read_version(text: str | None) -> str | None:
    """Return a version unchanged.

    Raises:
        typer.BadParameter: The text is not a version that begins with a number.
    """
    if text is not None and re.fullmatch(r"\d+(\.\d+)*(\.?[A-Za-z]+\d*)*(\+[\w.-]+)?", text) is None:
        raise typer.BadParameter(f"{text!r} is no version, such as 2.20")
    return text


def read_gpu(text: str | None) -> str | None:
    """Return the short name of a GPU.

    Raises:
        typer.BadParameter: The GPU is unknown.
    """
    try:
        return text and gpu_short_name(text, field="--gpu")
    except UnknownGpuError as error:
        raise typer.BadParameter(str(error).removeprefix("--gpu: ")) from error  # typer adds the option


def read_run_folder(text: str) -> Path:
    """Return the path of the run folder, with a leading `~` expanded.

    Raises:
        typer.BadParameter: The text is a URL, or empty. `--out "$RUN"` without RUN is empty, and would be the current
            folder.
    """
    if not text:
        raise typer.BadParameter(
            "is empty, as where a shell's variable is not set. Give a folder, or . for this one."
        )
    if is_url(text):
        raise typer.BadParameter(
            f"{text} is a URL, and would become a local folder. Name a local one, or one into which the storage is "
            "mounted on every node."
        )
    return Path(expand_home(text))


Arguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="FILE KEY=VALUE",
        help="A YAML file, then overrides in Hydra's grammar.",
        show_default=False,
    ),
]
ConfigFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--config", metavar="FILE", help="A YAML file laid over the recipe; repeatable, later wins."
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="DIR",
        parser=read_run_folder,
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
WorldSize = Annotated[
    int | None,
    typer.Option("--world-size", min=1, metavar="N", help="Processes of the whole run, on any machines."),
]
Gpu = Annotated[
    str | None,
    typer.Option(
        "--gpu",
        metavar="NAME",
        callback=read_gpu,
        help="GPU that the run is meant for: h100, b200, ... or as nvidia-smi prints it; default: this machine's.",
    ),
]
Engine = Annotated[
    str | None,
    typer.Option(
        "--te",
        metavar="VERSION",
        callback=read_version,
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
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
