"""Command line `mb-config`: check, explain, rules, show. Requires the extra `cli`.

A program that mounts `app`, or its parts `checks` and `configurations`, passes its recipes, rules and facts with
`set_program`. Each command imports its module when it is called, so that `--help` is fast.
"""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mb_config.cli.mounted_program import ConfigCommand, OverridesWithDashes, mounted_program
from mb_config.cli.options import (
    Json,
    MachineOptions,
    ProcessOptions,
    RequestOptions,
    add_import_option,
    command_input,
    common_options,
    target_machine,
)

if TYPE_CHECKING:
    from mb_config.cli.program import ConfigProgram

checks = typer.Typer()
"""Commands `check`, `explain` and `rules`."""

configurations = typer.Typer(help="Look at a configuration, or import one.", no_args_is_help=True)
"""Commands `show` and `import-args`."""


def _run(context: typer.Context, name: str, command: Callable[[Any, "ConfigProgram"], int]) -> None:
    """Run a command of the module `name` with the program, and exit with its code."""
    mounted = mounted_program(context)
    raise typer.Exit(mounted.exit_codes(lambda: command(import_module(f"mb_config.{name}"), mounted.load())))


@checks.command(
    cls=ConfigCommand,
    epilog="{source} model.tensor_model_parallel_size=4 --world-size 64 --gpu h100",
)
@common_options
def check(
    context: typer.Context,
    request: RequestOptions,
    processes: ProcessOptions,
    machine: MachineOptions,
    as_json: Json = False,
) -> None:
    """Report every mistake of a configuration at once, for any number of processes and any GPU.

    Each problem has its rule, the values, the reason, what to do, and where the values came from. Nothing is built and
    nothing is written. Without --gpu the check is for this machine: if it has no Transformer Engine, settings that
    need it are rejected. A recipe's value that the machine does not support is replaced as a run would replace it, and
    shown. Exit code 0: no rule rejects the run; 1: problems; 2: it could not be read.
    """
    _run(
        context,
        "cli.check",
        lambda module, program: module.check(
            program,
            command_input(request),
            target=target_machine(
                machine,
                world_size=processes.world_size or processes.nproc or program.world_size,
                local_world_size=processes.nproc,
            ),
            as_json=as_json,
        ),
    )


@checks.command(cls=ConfigCommand, epilog="V242")
def explain(
    context: typer.Context,
    rule: Annotated[str, typer.Argument(help="Its number, such as V242.", show_default=False)],
) -> None:
    """Explain a rule: its reason, the fix, an example that it rejects and one that passes."""
    _run(context, "cli.rules", lambda module, program: module.explain(program, rule))


@checks.command(cls=ConfigCommand, epilog="sequence_parallel --field model")
def rules(
    context: typer.Context,
    text: Annotated[
        str | None, typer.Argument(help="Text in the id, fields, reason or fix.", show_default=False)
    ] = None,
    package: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Rules of one package, such as mb-models.", show_default=False),
    ] = None,
    of_field: Annotated[
        str | None,
        typer.Option(
            "--field",
            metavar="PATH",
            help="Rules that read a field or a section: train.micro_batch_size, train.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the rules with their severity, the field that they are about, and the reason."""
    _run(
        context,
        "cli.rules",
        lambda module, program: module.rules(
            program, package=package, field=of_field, text=text, as_json=as_json
        ),
    )


@configurations.command(
    name="import-args",
    cls=ConfigCommand,
    context_settings={"ignore_unknown_options": True},
    epilog="pretrain.sh --set DATA=/data/pile_text_document --out run.yaml",
)
def import_args(
    context: typer.Context,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="SCRIPT | FLAGS",
            help="A shell script with the arguments of pretrain_gpt.py, or the arguments.",
            show_default=False,
        ),
    ],
    variable: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="Value of a variable of the script.", show_default=False
        ),
    ] = None,
    custom: Annotated[
        list[str] | None,
        typer.Option(
            "--custom-flag",
            metavar="FLAG",
            help="Flag of custom code, left out with its values: --custom-flag=--my-flag.",
            show_default=False,
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE",
            help="Write the YAML file; without it, it is printed.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Convert the arguments of Megatron-LM's pretrain_gpt.py to a YAML file of this project.

    Flags without a counterpart are listed on stderr, each with the reason. Defaults of Megatron-LM that change the
    training and differ from those of the sections are written. Of a script, assignments and variables are understood;
    nothing is executed.
    """
    _run(
        context,
        "cli.import_args",
        lambda module, program: module.import_args(
            words, variables=variable or [], custom=custom or [], out=file, program=program.name
        ),
    )


@configurations.command(cls=ConfigCommand, epilog="{source} optimizer.lr=1e-3 --origin")
@common_options
def show(
    context: typer.Context,
    request: RequestOptions,
    processes: ProcessOptions,
    machine: MachineOptions,
    origin: Annotated[bool, typer.Option("--origin", help="Print the origin of each value.")] = False,
    diff: Annotated[
        bool, typer.Option("--diff", help="Print only values that differ from the defaults of the sections.")
    ] = False,
    section: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Print one section, such as train.", show_default=False),
    ] = None,
    non_default: Annotated[
        bool,
        typer.Option(
            "--non-default", help="Print only values that differ from Megatron Core, and other sections."
        ),
    ] = False,
) -> None:
    """Print the resolved configuration as YAML that loads back; secrets are masked.

    A configuration that cannot be resolved is printed as written, with the reason on stderr.
    """
    if non_default and diff:
        raise typer.BadParameter(
            "compares with the defaults of the sections, --non-default with Megatron Core: give one of them",
            param_hint="--diff",
        )
    _run(
        context,
        "cli.check",
        lambda module, program: module.show(
            program,
            command_input(request),
            target=target_machine(
                machine,
                world_size=processes.world_size or processes.nproc or program.world_size,
                local_world_size=processes.nproc,
            ),
            view=module.ShowView(origin=origin, diff=diff, section=section, non_default=non_default),
        ),
    )


app = typer.Typer(
    name="mb-config",
    cls=OverridesWithDashes,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
app.add_typer(checks)
app.add_typer(configurations)


def _print_version(wanted: bool) -> None:
    """Print the version and exit if `--version` is given."""
    if wanted:
        typer.echo(f"mb-config {import_module('importlib.metadata').version('mb-config')}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Check and show the configuration of a Megatron trainer, before anything is built."""


def run() -> None:
    """Run the program `mb-config`."""
    program = typer.main.get_command(app)
    add_import_option(program, lambda: import_module("mb_config.cli.program").REGISTRY)
    program(prog_name="mb-config")
