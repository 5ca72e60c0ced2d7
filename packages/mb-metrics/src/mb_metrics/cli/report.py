"""Command `report`: statistics of runs as JSON, or a page."""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import yaml

from mb_metrics.errors import ReportWriteError
from mb_metrics.parse.log import LogFormat
from mb_metrics.report.incremental_statistics import compute_run_statistics
from mb_metrics.report.metric_names import MetricNames
from mb_metrics.report.page import write_report
from mb_metrics.report.run_history import RunHistory
from mb_metrics.report.run_reader import RunReader, folder_of_metrics, read_run, read_run_from_log
from mb_metrics.report.run_settings import BaselineConfiguration, RunConfiguration, compare_configuration
from mb_metrics.report.server import ReportServer
from mb_metrics.run.folder import CONFIG
from mb_schema.yaml_settings import parse_settings

Baselines = Mapping[Path, BaselineConfiguration]
"""Run folder to the baseline of its settings; without one, they are not compared."""


def report(
    runs: Sequence[Path],
    logs: Sequence[Path],
    *,
    log_format: LogFormat | None,
    out: Path | None,
    as_json: bool,
    metric_names: MetricNames,
    baselines: Baselines,
) -> None:
    """Write a page on runs and logs and print its path, or print their statistics as JSON.

    Raises:
        MetricsError: a run or log cannot be read, or the page cannot be written.
    """
    histories = [read_run_with_settings(run, baselines=baselines, metric_names=metric_names) for run in runs]
    histories += [read_run_from_log(log, format=log_format, metric_names=metric_names) for log in logs]
    for history in histories:
        for note in history.notes:
            print(f"note: {history.source}: {note}", file=sys.stderr)
    now = time.time()
    if as_json:
        statistics = [compute_run_statistics(history, now=now).as_json() for history in histories]
        print(json.dumps({"runs": statistics}, indent=1, allow_nan=False))
    if out is not None or not as_json:
        target = out or default_target(runs, logs)
        try:
            write_report(histories, target, now=now)
        except OSError as error:
            raise ReportWriteError(f"{target}: cannot be written ({error}). Give another --out.") from error
        if not as_json:
            print(target)


def serve(runs: Sequence[Path], *, port: int, metric_names: MetricNames, baselines: Baselines) -> None:
    """Serve a page that follows runs, print its address, and return at an interrupt.

    Raises:
        MetricsError: a run cannot be read, or the port cannot be used.
    """
    readers = [
        RunReader(
            run,
            configuration=read_configuration(folder_of_metrics(run), baselines=baselines),
            metric_names=metric_names,
        )
        for run in runs
    ]

    def read() -> list[RunHistory]:
        for reader in readers:
            reader.poll()
        return [_with_user_settings(reader.run()) for reader in readers]

    read()
    with ReportServer(read, port=port) as server:
        print(server.url, flush=True)
        print(
            "This address is valid on this machine only. Ctrl-C ends the server, not the run.",
            file=sys.stderr,
        )
        with suppress(KeyboardInterrupt):
            server.serve()


def default_target(runs: Sequence[Path], logs: Sequence[Path]) -> Path:
    """Return the default path of the page: in the run folder, next to a file, or here if runs are compared."""
    if len(runs) + len(logs) > 1:
        return Path("report.html")
    (path,) = (*runs, *logs)
    return path / "report.html" if path.is_dir() else path.with_name(f"{path.stem}.report.html")


def read_run_with_settings(
    path: Path, *, baselines: Baselines | None = None, metric_names: MetricNames | None = None
) -> RunHistory:
    """Read a run with the settings of its folder, and add notes on changed and on unreadable settings.

    Raises:
        RunNotFoundError: there is no run at the path.
        MetricNotRecordedError: metrics were recorded, and none of a requested name.
    """
    path = folder_of_metrics(path)
    configuration = read_configuration(path, baselines=baselines)
    run = read_run(path, configuration=configuration, metric_names=metric_names)
    run = _with_user_settings(run)
    run = replace(run, notes=(*run.notes, *_changes_on_resume(run)))
    if configuration is not None or not (path / CONFIG).is_file():
        return run
    note = f"the settings are not shown: {CONFIG} is not a YAML file of settings"
    return replace(run, notes=(*run.notes, note))


def read_configuration(run: Path, *, baselines: Baselines | None = None) -> RunConfiguration | None:
    """Return the settings of a run folder compared with its baseline; None if there are none that can be read."""
    file = run / CONFIG
    if not file.is_file():
        return None
    settings = parse_settings(file.read_bytes(), yaml)
    if settings is None:
        return None
    return compare_configuration(settings, None if baselines is None else baselines.get(run))


def _with_user_settings(run: RunHistory) -> RunHistory:
    """Add the paths that the user set, by the starts of the run; without them if no start has them."""
    found = [event.details.get("set_by_user") for event in run.events if event.starts_attempt]
    known = [paths for paths in found if isinstance(paths, list)]
    if run.configuration is None or not known:
        return run
    paths = frozenset(str(path) for paths in known for path in paths)
    return replace(run, configuration=replace(run.configuration, set_by_user=paths))


def _changes_on_resume(run: RunHistory) -> list[str]:
    lines = []
    for event in run.events:
        changes = event.details.get("changes")
        if event.kind == "resume" and isinstance(changes, Mapping):
            pairs = {
                name: pair for name, pair in changes.items() if isinstance(pair, list) and len(pair) == 2
            }
            listed = ", ".join(f"{name} from {old!r} to {new!r}" for name, (old, new) in pairs.items())
            lines.append(f"settings changed at the resume from step {event.step}: {listed}")
    return lines
