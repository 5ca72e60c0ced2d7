"""Adapter for Comet.

Install it with `pip install "mb-metrics[comet]"`. Importing it lets Comet hook into libraries that are imported later;
all automatic logging of Comet is disabled here.
"""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import comet_ml
from comet_ml.config import set_global_experiment

from mb_metrics.recorder.record import Evaluation, MetricsRow
from mb_metrics.redact import hide_secrets
from mb_metrics.sinks.sink import Sink
from mb_metrics.sinks.tracker_run import PREFIX, TrackerRun, TrackerRunFile, prefixed, require_one_run


class CometSink(Sink):
    """Sink that logs each row as a step of a Comet experiment.

    The experiment is opened at the first record. With a run file, a resumed job continues the same experiment. Comet
    cannot delete values: repeated steps that it already has are not logged again, and the value
    "mb_metrics.repeated_steps" of the experiment lists them. A running experiment of the program keeps running.

    With `run`, metrics are added, with a prefix, to an experiment that the program has opened; it is not ended, and its
    name and its current step do not change.

    Args:
        project: Comet project of a new experiment.
        name: Name of the experiment.
        workspace: Comet workspace; None: the account's default.
        api_key: Comet API key; None: COMET_API_KEY or Comet's configuration.
        tags: Tags of the experiment.
        folder: Folder of an offline archive for `comet upload` (a killed process leaves none); None: determined by
            COMET_START_ONLINE and COMET_OFFLINE_DIRECTORY, by default online.
        run_file: File that stores the key of the experiment.
        resume_step: The last step to keep; see `TrackerRunFile`.
        config: Settings of the job, logged as parameters; secrets are omitted.
        run: A running experiment, such as `comet_ml.get_running_experiment()`; None: open a new one in `project`.
        prefix: Prefix of the metrics in `run`; None: "mb_metrics/".

    Raises:
        ValueError: neither `project` nor `run` is given; a setting of a new experiment is combined with `run`, or
            `prefix` with `project`.
    """

    def __init__(  # noqa: PLR0913 - settings, each by name
        self,
        project: str | None = None,
        *,
        name: str | None = None,
        workspace: str | None = None,
        api_key: str | None = None,
        tags: Sequence[str] | None = None,
        folder: str | Path | None = None,
        run_file: str | Path | None = None,
        resume_step: int | None = None,
        config: Mapping[str, object] | None = None,
        run: Any = None,
        prefix: str | None = None,
    ) -> None:
        settings: dict[str, object] = {
            "project": project,
            "name": name,
            "workspace": workspace,
            "api_key": api_key,
            "tags": tags,
        }
        settings |= {"folder": folder, "run_file": run_file, "resume_step": resume_step, "config": config}
        require_one_run("CometSink", run=run, prefix=prefix, new="project", settings=settings)
        self._host = run
        self._prefix = PREFIX if prefix is None else prefix
        self._where = {"project_name": project, "workspace": workspace}
        self._name = name
        self._api_key = api_key
        self._tags = list(tags or ())
        self._folder = None if folder is None else str(folder)
        self._file = TrackerRunFile(run_file, resume_step=resume_step)
        self._config = hide_secrets(config or {})
        self._experiment: Any = None
        self._tracked: TrackerRun | None = None
        self._repeated = self._repeated_evaluations = range(0)

    def write_rows(self, rows: Sequence[MetricsRow]) -> None:
        """Log the next steps."""
        for row in rows:
            self._log(row.step, row.values_and_samples)
        if self._tracked is not None and rows and rows[-1].step not in self._repeated:
            self._store(replace(self._tracked, last_step=rows[-1].step))

    def write_evaluation(self, evaluation: Evaluation) -> None:
        """Log an evaluation."""
        self._log(evaluation.step, evaluation.values, is_evaluation=True)
        if self._tracked is not None and evaluation.step not in self._repeated_evaluations:
            self._store(replace(self._tracked, last_evaluation=evaluation.step))

    def close(self) -> None:
        """End the experiment, if the sink opened it; waits until Comet has sent its queue or written its archive."""
        if self._experiment is not None:
            self._experiment.end()

    def _log(self, step: int, values: Mapping[str, float], *, is_evaluation: bool = False) -> None:
        if self._host is not None:
            current = self._host.curr_step  # log_metrics sets it, and the program may log without a step
            self._host.log_metrics(prefixed(values, self._prefix), step=step)
            self._host.curr_step = current
            return
        if self._experiment is None:
            self._experiment = self._open()
        if step not in (self._repeated_evaluations if is_evaluation else self._repeated):
            self._experiment.log_metrics(dict(values), step=step)

    def _store(self, tracked: TrackerRun) -> None:
        self._tracked = tracked
        self._file.write(tracked)

    def _open(self) -> Any:
        if self._folder is not None:
            Path(self._folder).mkdir(parents=True, exist_ok=True)
        stored = self._file.read()
        self._tracked = stored or TrackerRun(id=uuid.uuid4().hex)
        with _host_kept_running():
            experiment = comet_ml.start(
                api_key=self._api_key,
                experiment_key=self._tracked.id,
                mode="get_or_create",
                online=None if self._folder is None else False,
                experiment_config=self._settings(),
                **self._where,
            )
        self._file.write(self._tracked)
        if stored is None:
            experiment.log_parameters(self._config)
        else:
            self._repeated = self._file.repeated_steps(stored)
            # A process that was killed in an evaluation has sent its step, but not the evaluation.
            evaluations = replace(stored, last_step=stored.last_evaluation)
            self._repeated_evaluations = self._file.repeated_steps(evaluations)
        if self._repeated:
            steps = f"{self._repeated.start} to {self._repeated.stop - 1}"
            experiment.log_other("mb_metrics.repeated_steps", steps)
        return experiment

    def _settings(self) -> comet_ml.ExperimentConfig:
        return comet_ml.ExperimentConfig(
            name=self._name,
            tags=self._tags,
            offline_directory=self._folder,
            log_code=False,
            log_graph=False,
            log_git_metadata=False,
            log_git_patch=False,
            log_env_details=False,
            parse_args=False,
            auto_output_logging="",
            auto_metric_logging=False,
            auto_param_logging=False,
            auto_log_co2=False,
            auto_histogram_weight_logging=False,
            auto_histogram_gradient_logging=False,
            auto_histogram_activation_logging=False,
            display_summary_level=0,
        )


@contextmanager
def _host_kept_running() -> Iterator[None]:
    """Keep the running experiment of the program, which Comet would end when another one is opened."""
    host = comet_ml.get_running_experiment()
    if host is not None:
        set_global_experiment(None)
    try:
        yield
    finally:
        if host is not None:
            set_global_experiment(host)
