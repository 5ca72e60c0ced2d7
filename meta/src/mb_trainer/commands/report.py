"""`mb report`."""

import json
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from mb_metrics import (
    RunConfiguration,
    RunHistory,
    compute_run_statistics,
    read_run,
    read_run_from_log,
    write_report,
)
from mb_metrics.parse.log import LogFormat
from mb_trainer.commands.errors import UnwritableError, reported
from mb_trainer.recipes import RECIPES
from mb_trainer.run_folder import RunFolder, differences, flatten

_NAME_IN_LOG = re.compile(r"^([\w.-]+): .* M parameters,", re.MULTILINE)
_HEAD_OF_LOG = 20_000


def report(
    runs: Sequence[Path],
    *,
    logs: Sequence[Path],
    log_format: LogFormat | None,
    out: Path | None,
    as_json: bool,
) -> int:
    """Write a page on some runs and print its path, or print their figures as JSON; return the exit code."""

    def work() -> int:
        found = [read(run) for run in runs]
        found += [read_run_from_log(log, format=log_format) for log in logs]
        for each in found:
            for note in each.notes:
                print(f"note: {each.source}: {note}", file=sys.stderr)
        now = time.time()
        if as_json:
            figures = [compute_run_statistics(run, now=now).as_json() for run in found]
            print(json.dumps({"runs": figures}, indent=1, allow_nan=False))
        if out is not None or not as_json:
            target = out or default_target(runs, logs)
            write(found, target, now=now)
            if not as_json:
                print(target)
        return 0

    return reported(work)


def default_target(runs: Sequence[Path], logs: Sequence[Path]) -> Path:
    """Return where the page goes: into the run folder, beside a file, or here when several runs are compared."""
    if len(runs) + len(logs) > 1:
        return Path("report.html")
    (path,) = (*runs, *logs)
    return path / "report.html" if path.is_dir() else path.with_name(f"{path.stem}.report.html")


def write(runs: Sequence[RunHistory], target: Path, *, now: float) -> None:
    """Write the page.

    Raises:
        UnwritableError: the file cannot be written.
    """
    try:
        write_report(runs, target, now=now)
    except OSError as error:
        raise UnwritableError(f"{target}: cannot be written ({error}). Give another --out.") from error


def read(path: Path) -> RunHistory:
    """Read a run with its settings; a note says where there are settings that cannot be read."""
    settings = configuration(path)
    run = read_run(path, configuration=settings)
    run = replace(run, notes=(*run.notes, *changes_on_resume(run)))
    if settings is not None or not RunFolder(path).run_config.is_file():
        return run
    note = "the settings are not shown: run_config.yaml is no YAML file of settings"
    return replace(run, notes=(*run.notes, note))


def changes_on_resume(run: RunHistory) -> list[str]:
    """Return one line for each resume that changed settings."""
    lines = []
    for event in run.events:
        changes = event.details.get("changes")
        if event.kind == "resume" and isinstance(changes, Mapping):
            listed = ", ".join(f"{name} from {old!r} to {new!r}" for name, (old, new) in changes.items())
            lines.append(f"settings changed at the resume from step {event.step}: {listed}")
    return lines


def configuration(run: Path) -> RunConfiguration | None:
    """Return the settings of a run folder beside its recipe's; None where there are none, or none that can be read."""
    folder = RunFolder(run)
    if not folder.run_config.is_file():
        return None
    try:
        settings = yaml.safe_load(folder.run_config.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError):
        return None
    if not isinstance(settings, Mapping):
        return None
    recipe = recipe_of(folder)
    changes: dict[str, tuple[Any, Any]] = {}
    if recipe is not None:
        changes = differences(RECIPES[recipe].build().to_dict(), settings)
    own = flatten(settings)
    changes = {path: pair for path, pair in changes.items() if path in own}
    return RunConfiguration(settings=own, baseline=recipe and f"the recipe {recipe}", changes=changes)


def recipe_of(folder: RunFolder) -> str | None:
    """Return the recipe that a run began with, as its log says; None where that is not known."""
    if not folder.log.is_file():
        return None
    with folder.log.open(errors="replace") as log:
        names = _NAME_IN_LOG.findall(log.read(_HEAD_OF_LOG))
    return next((name for name in names if name in RECIPES), None)
