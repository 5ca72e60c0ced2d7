"""Arguments and options of the commands, also for trainers with commands on configurations.

Options that several commands have in common are fields of a record; `mb_schema.commands.common_options` gives them to
a command.
"""

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from mb_config.rules.hardware import gpu_short_name
from mb_schema.exit_codes import BAD_INPUT
from mb_schema.gpu_names import UnknownGpuError

if TYPE_CHECKING:
    from mb_config.overrides.registration import Registry


def read_version(text: str | None) -> str | None:
    """Return a version unchanged.

    Raises:
        typer.BadParameter: The text is not a version that begins with a number.
    """
    if text is not None and re.fullmatch(r"\d+(\.\d+)*(\.?[A-Za-z]+\d*)*(\+[\w.-]+)?", text) is None:
        raise typer.BadParameter(f"{text!r} is not a version, such as 2.20")
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
Processes = Annotated[
    int | None,
    typer.Option(
        "--nproc", min=1, metavar="N", help="Processes on this machine; default 1.", show_default=False
    ),
]
MOST_PROCESSES = 2**31 - 1
"""Processes that torch and NCCL can number."""

WorldSize = Annotated[
    int | None,
    typer.Option(
        "--world-size",
        min=1,
        max=MOST_PROCESSES,
        metavar="N",
        help="Processes of the whole run, on any machines.",
    ),
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
        help="Version of Transformer Engine on the GPU's machine, such as 2.20; default: the installed one.",
    ),
]
Apex = Annotated[
    bool,
    typer.Option(
        "--apex",
        help="With --gpu: Apex with its CUDA extensions is installed too; settings that need them are kept.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOptions:
    """Arguments that name a configuration."""

    arguments: Arguments = None
    config: ConfigFiles = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessOptions:
    """Number of processes of a run."""

    nproc: Processes = None
    world_size: WorldSize = None

    def __post_init__(self) -> None:
        """Check that the run has at least the processes of this machine.

        Raises:
            typer.BadParameter: It has fewer.
        """
        if self.nproc and self.world_size and self.nproc > self.world_size:
            raise typer.BadParameter(
                f"{self.nproc} processes on this machine are more than the {self.world_size} of the complete run "
                "(--world-size)",
                param_hint="--nproc",
            )

    def numbers(self, *, default: int | None = None) -> dict[str, int | None]:
        """Return the fields of `TargetMachine` that they set; `default` processes where none are given."""
        return {"world_size": self.world_size or self.nproc or default, "local_world_size": self.nproc}


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineOptions:
    """Machine that a run is meant for."""

    gpu: Gpu = None
    te: Engine = None
    apex: Apex = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewOptions:
    """Selection of what `show` prints."""

    origin: Annotated[bool, typer.Option("--origin", help="Print the origin of each value.")] = False
    diff: Annotated[
        bool, typer.Option("--diff", help="Print only values that differ from the defaults of the sections.")
    ] = False
    section: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Print one section, such as train.", show_default=False),
    ] = None
    non_default: Annotated[
        bool,
        typer.Option(
            "--non-default", help="Print only values that differ from Megatron Core, and other sections."
        ),
    ] = False

    def __post_init__(self) -> None:
        """Check that at most one comparison is requested.

        Raises:
            typer.BadParameter: There are two.
        """
        if self.non_default and self.diff:
            raise typer.BadParameter(
                "compares with the defaults of the sections, --non-default with Megatron Core: give one of them",
                param_hint="--diff",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleFilter:
    """Selection of the rules that `rules` lists."""

    text: Annotated[
        str | None, typer.Argument(help="Text in the id, fields, reason or fix.", show_default=False)
    ] = None
    package: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Rules of one package, such as mb-models.", show_default=False),
    ] = None
    of_field: Annotated[
        str | None,
        typer.Option(
            "--field",
            metavar="PATH",
            help="Rules that read a field or a section: train.micro_batch_size, train.",
            show_default=False,
        ),
    ] = None


def add_import_option(group: Any, registry: Callable[[], "Registry"]) -> None:
    """Give every command below a group the option --import, which adds the modules of the user to a registry.

    Args:
        group: Command group of click, as `typer.main.get_command` returns it.
        registry: Function that returns the registry; called when the option is given.
    """
    option = _import_option(registry)
    for each in group.commands.values():
        if hasattr(each, "commands"):
            add_import_option(each, registry)
        else:
            each.params.append(option)


def _import_option(registry: Callable[[], "Registry"]) -> Any:
    def import_modules(names: list[str] | None) -> list[str] | None:
        for name in names or ():
            try:
                registry().import_module(name)
            except ValueError as error:
                raise typer.BadParameter(str(error).removeprefix("--import ")) from error
        return names

    holder = typer.Typer()

    @holder.command()
    def options(
        imports: Annotated[
            list[str] | None,
            typer.Option(
                "--import",
                metavar="MODULE",
                callback=import_modules,
                is_eager=True,
                expose_value=False,
                help="A module with your recipes, sections or rules, which is imported; repeatable.",
                show_default=False,
            ),
        ] = None,
    ) -> None:
        """Hold the option."""

    return next(each for each in typer.main.get_command(holder).params if each.name == "imports")


def target_machine(machine: MachineOptions, **processes: Any) -> Any:
    """Return the machine that the options describe, with further fields of `TargetMachine`, such as its processes."""
    target = import_module("mb_config.preflight.facts").TargetMachine
    return target(gpu=machine.gpu, transformer_engine=machine.te, apex=machine.apex, **processes)


class OverridesWithDashes(TyperGroup):
    """Command group that prints the corrected command line when an override is written as an option (`--key=value`)."""

    def main(self, args: Sequence[str] | None = None, *more: Any, **settings: Any) -> Any:
        """Run the command line. If an unknown option is an override, print the corrected command line as well."""
        words = [*takewhile(lambda word: word != "--", sys.argv[1:] if args is None else args)]
        try:
            return super().main(args, *more, **settings)
        except SystemExit as end:
            bad = end.code == BAD_INPUT
            line = import_module("mb_config.overrides.shell_line").without_dashes(words) if bad else None
            if line is not None:
                print(f"error: an override has no dashes in front. Write {self.name} {line}", file=sys.stderr)
            raise
