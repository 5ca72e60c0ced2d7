"""Arguments and options that several commands of `mb` share, and the lazy import of their implementations."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

import mb_config.trainer_api
from mb_config.trainer_api import ALLOW_OOM
from mb_config.trainer_api import ConfigFiles as ConfigFiles
from mb_config.trainer_api import Json as Json
from mb_config.trainer_api import Processes as Processes
from mb_schema.paths import expand_home, is_url


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


def set_allow_oom(given: bool) -> bool:
    """Set the variable that the facts of this process, and of those that it starts, contain."""
    if given:
        os.environ[ALLOW_OOM] = "1"
    return given


RECIPE_ARGUMENTS = "A recipe's name or a YAML file (default: gpt_tiny), then overrides in Hydra's grammar."
Recipe = Annotated[
    list[str] | None,
    typer.Argument(metavar="RECIPE KEY=VALUE", help=RECIPE_ARGUMENTS, show_default=False),
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
NoNumaBinding = Annotated[
    bool,
    typer.Option(
        "--no-numa-binding",
        help="With --nproc: leave the processes on any CPU, not on those of their GPU's NUMA node.",
    ),
]
ResumeWithChanges = Annotated[
    bool, typer.Option("--resume-with-changes", help="Resume a run whose settings differ.")
]
AllowOom = Annotated[
    bool,
    typer.Option(
        "--allow-oom",
        callback=set_allow_oom,
        help="Start although weights, gradients and optimizer do not fit the GPU by the plan.",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeOptions:
    """Arguments that name a configuration and its run folder."""

    arguments: Recipe = None
    config: ConfigFiles = None
    out: Out = None

    def command_input(self) -> Any:
        """Return them as the commands on a configuration read them."""
        return mb_config.trainer_api.CommandInput(
            arguments=self.arguments or [], files=self.config or [], out=self.out
        )


def command(name: str) -> Any:
    """Import and return the module that implements a command. The modules of other commands are not loaded."""
    return import_module(f"mb_trainer.commands.{name}")


def exit_with(work: Callable[[], int]) -> NoReturn:
    """Run a command, and exit with its code, or with that of its error after printing it."""
    raise typer.Exit(command("errors").reported(work))
