"""`mb-guard`: the known faults in this environment, without torch."""

import json
from typing import Annotated

import typer

from mb_guard.installation import status
from mb_guard.report import FaultStatus

app = typer.Typer(
    name="mb-guard",
    help="Known faults of Megatron Core and its neighbours: which of them apply here, and what is done.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.callback()
def program() -> None:
    """Known faults of Megatron Core and its neighbours: which of them apply here, and what is done."""


@app.command(epilog="Example: mb-guard faults --json")
def faults(
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """List the faults that are known, and what `mb_guard.install()` does about each in this environment."""
    statuses = status().statuses
    if as_json:
        typer.echo(json.dumps([_as_data(each) for each in statuses]))
        return
    for each in statuses:
        typer.echo(f"{each.fault.id} ({each.fault.effect}): {each.state}")
        typer.echo(f"    {each.fault.summary}")


def _as_data(status: FaultStatus) -> dict[str, object]:
    fault = status.fault
    return {
        "id": fault.id,
        "effect": fault.effect,
        "summary": fault.summary,
        "shows": fault.shows,
        "versions": dict(fault.versions),
        "action": fault.action,
        "report": fault.report,
        "state": status.state,
        "detail": status.detail,
    }
