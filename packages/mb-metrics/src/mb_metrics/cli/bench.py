"""Command `bench`: measures one run, or two in turn, and prints a JSON object."""

import json
import shlex
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from mb_metrics.bench.command import BenchPlan as BenchPlan
from mb_metrics.bench.command import MakeCommand, measure
from mb_metrics.bench.request import BenchRequest
from mb_metrics.errors import MetricsError

CommandMaker = Callable[[Sequence[str], Path, BenchRequest], Sequence[str]]
"""Function of the arguments of a run, an empty folder for it and the request, which returns the command of the run."""


class ComparedArgumentsError(MetricsError, ValueError):
    """Error raised for arguments of --against that a shell could not split, or that are empty."""

    bad_input = True


def bench(
    arguments: Sequence[str],
    *,
    against: str | None,
    plan: BenchPlan,
    out: Path | None,
    make_command: CommandMaker,
) -> None:
    """Measure a run, and a second one in turn, and print the result.

    Raises:
        MetricsError: a run failed, or the second one is malformed.
    """
    runs = [list(arguments)]
    if against is not None:
        runs.append(compared_arguments(arguments, against))
    commands: list[tuple[str, MakeCommand]] = [
        (shlex.join(each), partial(make_command, each)) for each in runs
    ]
    log = partial(print, file=sys.stderr, flush=True)  # the result goes to stdout
    print(json.dumps(measure(commands, plan, folder=out, log=log), indent=1, allow_nan=False))


def plain_command(arguments: Sequence[str], _run: Path, _request: BenchRequest) -> Sequence[str]:
    """Return the arguments, which are the command of a program."""
    return arguments


def compared_arguments(arguments: Sequence[str], text: str) -> list[str]:
    """Return the arguments of the second run: those of the first one with more, or others.

    Raises:
        ComparedArgumentsError: a shell could not split the text, or it is empty.
    """
    try:
        others = shlex.split(text)
    except ValueError as error:
        raise ComparedArgumentsError(
            f"--against: {text!r} cannot be split ({error}). Close the quotes."
        ) from error
    if not others:
        raise ComparedArgumentsError(
            "--against: is empty. Name a run, or overrides such as train.micro_batch_size=2."
        )
    are_overrides = others[0].startswith("-") or "=" in others[0]
    return [*arguments, *others] if are_overrides else others
