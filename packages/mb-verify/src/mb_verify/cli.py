"""`mb-verify`: compare the records of two runs without torch."""

import json
from pathlib import Path
from typing import Annotated

import typer

from mb_verify.comparison import compare
from mb_verify.errors import VerificationError
from mb_verify.run_record import read_record
from mb_verify.verdict_text import counts_as_data, difference_as_data, verdict_table

app = typer.Typer(
    name="mb-verify",
    help="Proof that a resumed run equals the run that was never interrupted, bit for bit.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.callback()
def group() -> None:
    """Keep `compare` a command of its name, although it is the only one."""


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
        typer.echo(f"mb-verify: {error}", err=True)
        raise typer.Exit(2) from None
    if as_json:
        data = {
            "equal": verdict.equal,
            "steps": verdict.last_step,
            "ranks": verdict.ranks,
            "resumed_at": list(verdict.resumed_at),
            "compared": counts_as_data(verdict),
            "first": difference_as_data(verdict.first, "other"),
        }
        typer.echo(json.dumps(data))
    else:
        end = f"equal, bit for bit: {verdict.last_step} steps"
        if verdict.first is not None:
            end = f"different; first in\n  {verdict.first.describe(str(first), str(second))}"
        typer.echo("\n".join([*verdict_table(verdict), end]))
    raise typer.Exit(0 if verdict.equal else 1)
