"""`mb-guard`: the known faults in this environment, without torch."""

import json
import os
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from mb_guard.catalogue import FAULTS
from mb_guard.doctor import as_data, as_text, exit_code, find_problems, read_facts
from mb_guard.errors import UnreadableSettingsError
from mb_guard.installation import status
from mb_guard.report import FaultStatus
from mb_guard.settings_reader import read_settings

app = typer.Typer(
    name="mb-guard",
    help="Known faults of Megatron Core and its neighbours: which of them apply here, and what is done.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


diagnosis = typer.Typer()
"""The command `doctor`, which other programs mount as it is."""
app.add_typer(diagnosis)


@diagnosis.command(epilog="Example: mb-guard doctor --json > doctor.json")
def doctor(
    folder: Annotated[
        Path | None,
        typer.Option(
            "--folder", metavar="DIR", help="Run folder, whose file system is examined; default: runs."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Examine versions, GPUs, limits, fast paths that are lost in silence, and known faults; for bug reports.

    Works without a GPU and without torch. On several ranks (torchrun -m mb_guard doctor, or srun) rank 0 prints the
    differences between the nodes and the result of an all-reduce.

    Exit code 0: ready; 1: a problem prevents training.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        examine_ranks = import_module("mb_guard.ranks").examine_ranks  # imports torch
        raise typer.Exit(examine_ranks(folder or Path("runs"), as_json=as_json))
    facts = read_facts(folder or Path("runs"), os.environ)
    findings = find_problems(facts)
    typer.echo(json.dumps(as_data(facts, findings)) if as_json else as_text(facts, findings))
    raise typer.Exit(exit_code(findings))


@app.command(
    epilog="Example: mb-guard check train.sh",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
def check(
    arguments: Annotated[
        list[str],
        typer.Argument(
            metavar="SCRIPT-OR-FLAGS", help="Shell script, YAML configuration, or flags of Megatron-LM."
        ),
    ],
) -> None:
    """List the known faults that a run would meet, without running it.

    Exit code 0: none, or all are put right by mb_guard.install(); 1: a fault remains; 2: the file cannot be read.
    """
    try:
        settings = read_settings(arguments)
    except UnreadableSettingsError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    met = [each for each in status().statuses if each.fault.met is not None and each.fault.met(settings)]
    for each in met:
        typer.echo(check_line(each))
    remaining = [each for each in met if each.fault.action != "put right" or each.state == "unknown source"]
    typer.echo(
        f"{len(met)} of {len(FAULTS)} known faults met, {len(remaining)} remain with mb_guard.install()"
    )
    raise typer.Exit(1 if remaining else 0)


def check_line(status: FaultStatus) -> str:
    """Return what a run meets and what is done about it."""
    fault = status.fault
    done = {"put right": "Put right by mb_guard.install().", "refuse": "Refused.", "warn": "Reported."}[
        fault.action
    ]
    if status.state == "unknown source":
        done = f"Not put right: {status.detail}."
    return f"{fault.id} ({fault.effect}): {fault.summary} {fault.shows} {done} {fault.advice}".rstrip()


@app.command(epilog="Example: mb-guard faults --json")
def faults(as_json: AsJson = False) -> None:
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
