"""Command line `mb-config`: check, explain, rules, show, import-args. Requires the extra `cli`.

Each command imports its module when it is called, so that `--help` is fast.
"""

from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from mb_config.cli.options import (
    Json,
    MachineOptions,
    OverridesWithDashes,
    ProcessOptions,
    RequestOptions,
    RuleFilter,
    ViewOptions,
    add_import_option,
    target_machine,
)
from mb_schema.commands import CommandWithExample, common_options, version_option
from mb_schema.exit_codes import exit_code

app = typer.Typer(
    name="mb-config",
    cls=OverridesWithDashes,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)

imports = typer.Typer()
"""Command `import-args`, which a trainer adds to its own."""


def _run(command: str, **options: Any) -> None:
    """Run a command, "module:function", and exit with its code."""
    module, _, function = command.partition(":")
    message_of = import_module("mb_config.cli.listing").message_of
    work = getattr(import_module(f"mb_config.cli.{module}"), function)
    raise typer.Exit(exit_code(lambda: work(**options), message=message_of))


def _given(request: RequestOptions, processes: ProcessOptions, machine: MachineOptions) -> dict[str, Any]:
    """Return the arguments and the machine that the options describe."""
    given = import_module("mb_config.cli.examination").CommandInput
    target = target_machine(machine, **processes.numbers())
    return {
        "given": given(arguments=request.arguments or [], files=request.config or []),
        "target": target,
    }


@app.command(
    cls=CommandWithExample,
    epilog="run.yaml model.tensor_model_parallel_size=4 --world-size 64 --gpu h100",
)
@common_options
def check(
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
    _run("check:check", **_given(request, processes, machine), as_json=as_json)


@app.command(cls=CommandWithExample, epilog="V242")
def explain(
    rule: Annotated[str, typer.Argument(help="Its number, such as V242.", show_default=False)],
) -> None:
    """Explain a rule: its reason, the fix, an example that it rejects and one that passes."""
    _run("rules:explain", name=rule)


@app.command(cls=CommandWithExample, epilog="sequence_parallel --field model")
@common_options
def rules(
    options: RuleFilter,
    as_json: Json = False,
) -> None:
    """List the rules with their severity, the field that they are about, and the reason."""
    _run("rules:rules", chosen=options, as_json=as_json)


@imports.command(
    name="import-args",
    cls=CommandWithExample,
    context_settings={"ignore_unknown_options": True},
    epilog="pretrain.sh --set DATA=/data/pile_text_document --out run.yaml",
)
def import_args(
    context: typer.Context,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="SCRIPT [ARGUMENTS] | FLAGS",
            help="A shell script that starts pretrain_gpt.py, with its arguments; a model_config.yaml of Megatron-LM's "
            "functional tests; or the flags. Flags after a script take precedence over its own.",
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
    ignore_unknown: Annotated[
        bool,
        typer.Option(
            "--ignore-unknown",
            help="Leave out all flags that Megatron-LM does not know, those of custom code, and list them.",
        ),
    ] = False,
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
    training and differ from those of the sections are written. The statements of a script are followed without
    running a program; environment variables that it sets become `env_vars`.
    """
    _run(
        "import_args:import_args",
        words=words,
        variables=variable or [],
        custom=custom or [],
        ignore_unknown=ignore_unknown,
        out=file,
        program=context.find_root().info_name,
    )


@app.command(cls=CommandWithExample, epilog="run.yaml optimizer.lr=1e-3 --origin")
@common_options
def show(
    request: RequestOptions,
    processes: ProcessOptions,
    machine: MachineOptions,
    view: ViewOptions,
) -> None:
    """Print the resolved configuration as YAML that loads back; secrets are masked.

    A configuration that cannot be resolved is printed as written, with the reason on stderr.
    """
    _run("check:show", **_given(request, processes, machine), view=view)


app.add_typer(imports)


@app.callback()
def main(
    version: Annotated[bool, version_option("mb-config")] = False,
) -> None:
    """Check and show the configuration of a Megatron trainer, before anything is built."""


def run() -> None:
    """Run the program `mb-config`."""
    program = typer.main.get_command(app)
    add_import_option(program, lambda: import_module("mb_config.cli.rules").REGISTRY)
    program(prog_name="mb-config")
