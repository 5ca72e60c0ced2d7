"""Processes of the rows, their time limits, and the order in which they run."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from threading import Event
from typing import Any

from first_run.machine import NO_GPU, REPOSITORY, SETTINGS, Machine, without_packages
from first_run.row import Row, RowFailed, in_a_child

TAIL_LINES = 40
PASSED_DEADLINE = "the deadline has passed"

Line = dict[str, Any]
"""A line of the table: row, status, reason, values."""


def run_row(row: Row, machine: Machine, *, seconds_left: float = float("inf")) -> Line:
    """Run a row and return its line of the table."""
    missing = [each for each in row.needs if each != "gpu" and find_spec(each) is None]
    if "gpu" in row.needs and not machine.gpu:
        return skipped_without_gpu(row, machine)
    if missing:
        return {"status": "skipped", "reason": f"not installed: {', '.join(missing)}"}
    log = machine.out / "logs" / f"{row.id.replace('/', '_')}.txt"
    for folder in (machine.trained(row.id), machine.measured(row.id)):
        shutil.rmtree(folder, ignore_errors=True)  # a run there would be complete, and do nothing
    environment = {**machine.environment, **row.environment}
    if row.without:
        hidden = without_packages(machine.out / "hidden", row.without)
        environment["PYTHONPATH"] = os.pathsep.join([hidden, environment["PYTHONPATH"]])
    limit = min(row.limit_seconds, seconds_left)
    code = run_process(row.command(machine), environment=environment, log=log, limit=limit)
    if code is None and limit < row.limit_seconds:
        return {"status": "skipped", "reason": f"{PASSED_DEADLINE}; stopped after {limit:.0f} s"}
    if code is None:
        reason = f"still running after {row.limit_seconds:g} s, and killed"
        return {"status": "failed", "reason": reason, "output": tail(log)}
    return judged(row, machine, code=code, log=log)


def judged(row: Row, machine: Machine, *, code: int, log: Path) -> Line:
    """Return the line of a row that has ended."""
    try:
        values = row.check(machine) if row.check is not None and (code == 0 or "pytest" in row.needs) else {}
    except (RowFailed, OSError, ValueError, KeyError, ElementTree.ParseError) as error:
        reason = str(error) if isinstance(error, RowFailed) else f"{type(error).__name__}: {error}"
        return {"status": "failed", "reason": reason, "output": tail(log)}
    if code != 0:
        return {"status": "failed", "reason": f"exit code {code}", "output": tail(log)}
    if values.get("skipped") and not values.get("passed"):
        reasons = "; ".join(dict.fromkeys(values["notes"].values()))
        return {"status": "skipped", "reason": reasons, "values": values}
    return {"status": "passed", "values": values}


def skipped_without_gpu(row: Row, machine: Machine) -> Line:
    """Return the line of a row that needs a GPU; its settings are checked all the same, those of all rows at once."""
    if row.settings is None:
        return {"status": "skipped", "reason": NO_GPU}
    answers = machine.out / SETTINGS
    if not answers.exists():
        log = machine.out / "logs" / "settings.txt"
        run_process(in_a_child("settings")(machine), environment=machine.environment, log=log, limit=300)
    rejected = json.loads(answers.read_text())[row.id]
    if rejected:
        return {"status": "failed", "reason": "mb check rejects the settings", "output": rejected}
    return {"status": "skipped", "reason": f"{NO_GPU}; mb check accepts the settings"}


def run_process(
    command: Sequence[str], *, environment: Mapping[str, str], log: Path, limit: float
) -> int | None:
    """Run a command in a separate session, with its output in a file; return its exit code, None if it was killed."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as stream:
        process = subprocess.Popen(
            command,
            env=dict(environment),
            cwd=REPOSITORY,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            return process.wait(None if limit == float("inf") else limit)
        except subprocess.TimeoutExpired:
            return None
        finally:
            end_session(process)


def end_session(process: subprocess.Popen[bytes]) -> None:
    """Kill what a row has left running, and wait for its first process."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def tail(log: Path) -> list[str]:
    """Return the end of a log."""
    return log.read_text(errors="replace").splitlines()[-TAIL_LINES:]


def table(
    machine: Machine,
    chosen: Sequence[Row],
    *,
    ends: float,
    jobs: int = 1,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Line]:
    """Run the rows in order and yield their lines as they end.

    Rows in a sequence that may share the machine run `jobs` at a time; a row that measures speed runs alone. Rows that
    the deadline leaves no time are skipped, and those that it meets running are stopped.

    Args:
        machine: Environment of the rows.
        chosen: The rows.
        ends: Deadline, in seconds of the clock.
        jobs: Rows that run at the same time.
        clock: Seconds.
    """
    ended = {row.id: Event() for row in chosen}

    def run(row: Row) -> Line:
        for each in row.after:
            if each in ended:
                ended[each].wait()
        began = clock()
        try:
            line = (
                run_row(row, machine, seconds_left=ends - began)
                if began < ends
                else {"status": "skipped", "reason": PASSED_DEADLINE}
            )
        except Exception as error:  # noqa: BLE001 - the next row follows whatever happens
            line = {"status": "failed", "reason": f"{type(error).__name__}: {error}"}
        ended[row.id].set()
        return {"row": row.id, "seconds": round(clock() - began, 1), **line}

    for alone, rows in groupby(chosen, key=lambda row: row.alone):
        if alone or jobs == 1:
            yield from map(run, rows)
            continue
        with ThreadPoolExecutor(jobs) as pool:
            for future in as_completed([pool.submit(run, row) for row in rows]):
                yield future.result()
