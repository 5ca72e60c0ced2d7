"""`mb-verify`: compare the records of two runs, and drill a run, without torch."""

import json
from pathlib import Path
from typing import Annotated

import typer

from mb_schema.commands import common_options
from mb_verify.cli.options import CommandDrillOptions
from mb_verify.comparison.records import compare
from mb_verify.comparison.verdict_text import counts_as_data, difference_as_data, verdict_table
from mb_verify.errors import VerificationError
from mb_verify.record.run_record import read_record
from mb_verify.resume.interruption import RunStart

BEFORE_THE_RESUME = (
    "This is before the interruption, so the resume is not at fault. Seed every random stream that is used (random, "
    "numpy.random, torch), and read the same data in both runs."
)

app = typer.Typer(
    name="mb-verify",
    help="Proof that a resumed run equals the run that was never interrupted, bit for bit, also under faults.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.command(name="compare", epilog="Example: mb-verify compare records/uninterrupted records/interrupted")
def compare_records(
    first: Annotated[
        Path, typer.Argument(metavar="A", help="Folder with the record of the uninterrupted run.")
    ],
    second: Annotated[Path, typer.Argument(metavar="B", help="Folder with the record of the other run.")],
    any_ranks: Annotated[
        bool,
        typer.Option(
            "--any-ranks",
            help="Compare only values that do not depend on the number of processes, such as the data that was read.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Compare every value that two runs recorded, and print the first difference with its step and rank.

    Exit code 0: equal; 1: different; 2: a record cannot be read.
    """
    try:
        verdict = compare(read_record(first), read_record(second), same_ranks=not any_ranks)
    except (VerificationError, OSError, ValueError, KeyError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    if as_json:
        data = {
            "equal": verdict.equal,
            "steps": verdict.last_step,
            "ranks": verdict.ranks,
            "resumed_at": list(verdict.resumed_at),
            "notes": verdict.notes,
            "compared": counts_as_data(verdict),
            "first": difference_as_data(verdict.first, "other"),
        }
        typer.echo(json.dumps(data))
    else:
        end = f"equal, bit for bit: {verdict.last_step} steps"
        if verdict.first is not None:
            end = f"different; first in\n  {verdict.first.describe(str(first), str(second))}"
        if verdict.differs_before_interruption:
            end += f"\n{BEFORE_THE_RESUME}"
        typer.echo("\n".join([*verdict_table(verdict), end, *verdict.notes]))
    raise typer.Exit(0 if verdict.equal else 1)


@app.command(epilog="Example: mb-verify drill --nproc 2 -- torchrun --nproc-per-node 2 train.py --out={run}")
@common_options
def drill(
    command: Annotated[
        list[str],
        typer.Argument(
            metavar="-- COMMAND",
            help="Command of the trainer; {run} becomes the run folder.",
            show_default=False,
        ),
    ],
    options: CommandDrillOptions,
    checkpoints: Annotated[
        str, typer.Option("--checkpoints", help="Folder below the run folder that holds the checkpoints.")
    ] = "checkpoints",
) -> None:
    """Run a trainer under injected faults, and compare it with the same run without them.

    The command is started again until its run is complete. It must resume from the newest checkpoint of {run}, and
    record its steps as its environment requests: see the documentation of mb-verify.

    Exit code 0: recovered from each fault, with results equal bit for bit; 1: not; 2: no such request; 3: the machine
    is not repeatable.
    """

    def make_command(start: RunStart) -> list[str]:
        return [argument.replace("{run}", str(start.run)) for argument in command]

    try:
        if not any("{run}" in argument for argument in command):
            raise typer.BadParameter(
                "needs {run}, which becomes the run folder of each run", param_hint="COMMAND"
            )
        raise typer.Exit(options.run(make_command, tracker=Path(checkpoints) / "latest"))
    except (VerificationError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2 if getattr(error, "bad_input", False) else 1) from None
