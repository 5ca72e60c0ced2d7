"""Program that mounts the commands of mb-config: its recipes, rules and facts, and how its arguments are described."""

import sys
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field
from importlib import import_module
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand, TyperGroup

from mb_schema.exit_codes import BAD_INPUT, exit_code

if TYPE_CHECKING:
    from mb_config.cli.program import ConfigProgram


_MOUNT = "mb_config.cli.program"


@dataclass(frozen=True, slots=True, kw_only=True)
class MountedProgram:
    """Program that mounts the commands. Nothing of it is loaded to print help."""

    load: "Callable[[], ConfigProgram]" = field(
        default_factory=lambda: lambda: import_module("mb_config.cli.program").standalone_program()
    )
    """Function that returns the recipes, rules and facts."""

    exit_codes: Callable[[Callable[[], int]], int] = field(
        default_factory=lambda: (
            lambda work: exit_code(work, message=import_module("mb_config.cli.errors").message_of)
        )
    )
    """Function that runs a command, and prints its errors."""

    source: str = "FILE"
    """Placeholder of the first argument, in help."""

    source_help: str = "A YAML file, then overrides in Hydra's grammar."
    """Description of the arguments."""

    example: str = "run.yaml"
    """First argument in the examples."""

    run_folders: bool = False
    """Whether a run has a folder, which the option --out names."""


def set_program(context: typer.Context, program: MountedProgram) -> None:
    """Set the program for the commands below `context`. A program that mounts them calls it in its callback."""
    context.meta[_MOUNT] = program


def mounted_program(context: Any) -> MountedProgram:
    """Return the program that mounts the commands, or `mb-config` itself."""
    program: MountedProgram = context.meta.get(_MOUNT) or MountedProgram()
    return program


class ConfigCommand(TyperCommand):
    """Command whose arguments and example are those of the program that mounts it.

    Its epilog contains the arguments of an example, with `{source}` for the first one.
    """

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters: --out only if runs have folders."""
        program = mounted_program(ctx)
        shown = []
        for parameter in super().get_params(ctx):
            if parameter.name == "arguments":
                described: Any = copy(parameter)
                described.metavar, described.help = f"{program.source} KEY=VALUE", program.source_help
                shown.append(described)
            elif parameter.name != "out" or program.run_folders:
                shown.append(parameter)
        return shown

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help of the command."""
        arguments = self.epilog or ""
        example = arguments.replace("{source}", mounted_program(ctx).example)
        self.epilog = f"Example: {ctx.command_path} {example}"
        try:
            super().format_help(ctx, formatter)
        finally:
            self.epilog = arguments


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
