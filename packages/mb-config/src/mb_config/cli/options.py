"""Arguments and options of the commands, also for programs that mount them.

Options that several commands have in common are fields of a record; `common_options` gives them to a command.
"""

import inspect
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from mb_config.preflight.facts import ALLOW_OOM
from mb_config.rules.hardware import gpu_short_name
from mb_schema.gpu_names import UnknownGpuError
from mb_schema.paths import expand_home, is_url

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


def set_allow_oom(given: bool) -> bool:
    """Set the variable that the facts of this process, and of those that it starts, contain."""
    if given:
        os.environ[ALLOW_OOM] = "1"
    return given


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
AllowOom = Annotated[
    bool,
    typer.Option(
        "--allow-oom",
        callback=set_allow_oom,
        help="Start although weights, gradients and optimizer do not fit the GPU by the plan.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOptions:
    """Arguments that name a configuration."""

    arguments: Arguments = None
    config: ConfigFiles = None
    out: Out = None


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


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineOptions:
    """Machine that a run is meant for."""

    gpu: Gpu = None
    te: Engine = None
    apex: Apex = False


def common_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace each parameter of a command whose type is a record of options by the fields of the record."""
    hints: dict[str, Any] = get_type_hints(command, include_extras=True)
    records: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    shown = []
    for parameter in inspect.signature(command).parameters.values():
        record = records.get(parameter.name)
        types = {} if record is None else get_type_hints(record, include_extras=True)
        shown += [
            parameter.replace(name=item.name, annotation=types[item.name], default=item.default)
            for item in (() if record is None else fields(record))
        ] or [parameter.replace(annotation=hints[parameter.name])]

    @wraps(command)
    def with_records(**values: Any) -> None:
        for name, record in records.items():
            values[name] = record(**{item.name: values.pop(item.name) for item in fields(record)})
        command(**values)

    with_records.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    with_records.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    return with_records


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


def command_input(request: RequestOptions) -> Any:
    """Return the arguments that the commands on a configuration have in common."""
    given = import_module("mb_config.cli.check").CommandInput
    return given(arguments=request.arguments or [], files=request.config or [], out=request.out)


def target_machine(machine: MachineOptions, **processes: Any) -> Any:
    """Return the machine that the options describe, with further fields of `TargetMachine`."""
    target = import_module("mb_config.preflight.facts").TargetMachine
    return target(gpu=machine.gpu, transformer_engine=machine.te, apex=machine.apex, **processes)
