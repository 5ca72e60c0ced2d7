"""Measurement of commands: each is started with a request in its environment, and leaves a result. No torch."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mb_metrics.bench.kernels import kernel_table
from mb_metrics.bench.request import PREFIX, BenchRequest
from mb_metrics.bench.result import BenchResult, combine_rounds, ratios
from mb_metrics.errors import MetricsError
from mb_schema.exit_codes import BAD_INPUT

_LAST_LINES = 30


class BenchRunError(MetricsError, RuntimeError):
    """Error raised when a measured command fails, or measures nothing.

    Attributes:
        exit_code: That of the command; None if it did not fail itself.
    """

    def __init__(self, message: str, *, exit_code: int | None = None) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class BenchCommandError(BenchRunError):
    """Error raised when a measured command ends with exit code 2: it could not read its arguments."""

    bad_input = True


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchPlan:
    """What is measured."""

    steps: int
    warmup: int
    profiled: int
    rounds: int = 1
    """Runs of each command, in turn."""
    kernels: bool = False
    """Write the table of `mb_metrics.bench.kernels` in the folder of each run."""

    def request(self, result: Path) -> BenchRequest:
        """Return the request for one run."""
        trace = result.with_name("trace.json") if self.kernels and self.profiled else None
        return BenchRequest(
            result=result, steps=self.steps, warmup=self.warmup, profiled=self.profiled, trace=trace
        )


MakeCommand = Callable[[Path, BenchRequest], Sequence[str]]
"""Function of an empty folder for the run and of the request, which returns the command of the run."""


def measure(
    commands: Sequence[tuple[str, MakeCommand]],
    plan: BenchPlan,
    *,
    folder: Path | None = None,
    log: Callable[[str], object] = print,
) -> dict[str, Any]:
    """Measure one command, or two in turn, and return the JSON object of the result.

    Args:
        commands: Name and command of the run; a second pair is what it is compared with.
        plan: Steps and rounds.
        folder: Receives the folder of each run and its output; None: a temporary one.
        log: Receives a line for each run.

    Raises:
        BenchRunError: a command failed, or wrote no result.
    """
    with tempfile.TemporaryDirectory(prefix="bench-") as temporary:
        root = Path(temporary) if folder is None else folder
        results: list[list[BenchResult]] = [[] for _ in commands]
        for round_number in range(plan.rounds):
            for index, (name, make_command) in enumerate(commands):
                run = root / f"{'run' if index == 0 else 'against'}-{round_number + 1}"
                result = measure_once(name, make_command, run, plan)
                log(f"{name}: {result.as_text()}")
                results[index].append(result)
    combined = [combine_rounds(rounds) for rounds in results]
    report: dict[str, Any] = {"run": {"name": commands[0][0], **combined[0].as_json()}}
    if len(combined) > 1:
        report["against"] = {"name": commands[1][0], **combined[1].as_json()}
        report["ratios"] = ratios(combined[0], combined[1])
    return report


def measure_once(name: str, make_command: MakeCommand, run: Path, plan: BenchPlan) -> BenchResult:
    """Run a command to its end and return what its process measured.

    Raises:
        BenchCommandError: the folder is not empty, or the command could not be started or read its arguments.
        BenchRunError: the command failed, or wrote no result.
    """
    if run.is_dir() and any(run.iterdir()):
        raise BenchCommandError(
            f"--out: {run} holds files, because something was measured there before. Name another folder."
        )
    run.mkdir(parents=True, exist_ok=True)
    request = plan.request(run / "bench.json")
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(PREFIX)}
    began, log = time.monotonic(), run / "output.txt"
    command, environment = list(make_command(run, request)), {**inherited, **request.variables()}
    with log.open("w", encoding="utf-8") as output:
        try:
            code = subprocess.run(
                command, env=environment, stdout=output, stderr=subprocess.STDOUT, check=False
            ).returncode
        except OSError as error:
            raise BenchCommandError(f"{name}: cannot be started ({error}). Check the command.") from error
    if code != 0:
        last = "\n".join(log.read_text(errors="replace", encoding="utf-8").splitlines()[-_LAST_LINES:])
        kind = BenchCommandError if code == BAD_INPUT else BenchRunError
        seconds = time.monotonic() - began
        raise kind(
            f"{name}: the run failed with exit code {code} after {seconds:.0f} s. Its last lines:\n{last}",
            exit_code=code,
        )
    if not request.result.exists():
        raise BenchRunError(
            f"{name}: the run ended without a result, because its loop made fewer than "
            f"{request.warmup + request.steps} steps, or has no callback of "
            f"mb_metrics.bench.request.bench_callbacks. Add it to the callbacks."
        )
    if request.trace is not None:
        table = kernel_table(json.loads(request.trace.read_text(encoding="utf-8")), steps=request.profiled)
        (run / "kernels.json").write_text(json.dumps(table, indent=1), encoding="utf-8")
    return BenchResult.from_dict(json.loads(request.result.read_text(encoding="utf-8")))
