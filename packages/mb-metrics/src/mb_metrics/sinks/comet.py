"""Adapter for Comet.

Install it with `pip install "mb-metrics[comet]"`. Importing it lets Comet hook into libraries that are imported later;
all automatic logging of Comet is disabled here.
"""

import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import comet_ml

from mb_metrics.record import Evaluation, MetricsRow
from mb_metrics.redact import hide_secrets
from mb_metrics.sink import Sink
from mb_metrics.tracker_run import TrackerRun, TrackerRunFile


class CometSink(Sink):
    """Sink that logs each row as a step of a Comet experiment.

    The experiment is opened at the first record. With a run file, a resumed job continues the same experiment. Comet
    cannot delete values: repeated steps that it already has are not logged again, and the value
    "mb_metrics.repeated_steps" of the experiment lists them.

    Args:
        project: Comet project.
        name: Name of the experiment.
        workspace: Comet workspace; None: the account's default.
        api_key: Comet API key; None: COMET_API_KEY or Comet's configuration.
        tags: Tags of the experiment.
        folder: Folder of an offline archive for `comet upload` (a killed process leaves none); None: determined by
            COMET_START_ONLINE and COMET_OFFLINE_DIRECTORY, by default online.
        run_file: File that stores the key of the experiment.
        resume_step: The last step to keep; see `TrackerRunFile`.
        config: Settings of the job, logged as parameters; secrets are omitted.
    """

    def __init__(  # noqa: PLR0913 - settings, each by name
        self,
        project: str,
        *,
        name: str | None = None,
        workspace: str | None = None,
        api_key: str | None = None,
        tags: Sequence[str] | None = None,
        folder: str | Path | None = None,
        run_file: str | Path | None = None,
        resume_step: int | None = None,
        config: Mapping[str, object] | None = None,
    ) -> None:
        self._where = {"project_name": project, "workspace": workspace}
        self._name = name
        self._api_key = api_key
        self._tags = list(tags or ())
        self._folder = None if folder is None else str(folder)
        self._file = TrackerRunFile(run_file, resume_step=resume_step)
        self._config = hide_secrets(config or {})
        self._experiment: Any = None
        self._tracked: TrackerRun | None = None
        self._repeated = range(0)

    def write_rows(self, rows: Sequence[MetricsRow]) -> None:
        """Log the next steps."""
        for row in rows:
            self._log(row.step, row.values_and_samples)
        if rows:
            self._write_run_file(rows[-1].step)

    def write_evaluation(self, evaluation: Evaluation) -> None:
        """Log an evaluation."""
        self._log(evaluation.step, evaluation.values)

    def close(self) -> None:
        """End the experiment; waits until Comet has sent its queue or written its archive."""
        if self._experiment is not None:
            self._experiment.end()

    def _log(self, step: int, values: Mapping[str, float]) -> None:
        if self._experiment is None:
            self._experiment = self._open()
        if step not in self._repeated:
            self._experiment.log_metrics(dict(values), step=step)

    def _write_run_file(self, step: int) -> None:
        if self._tracked is not None and step not in self._repeated:
            self._tracked = TrackerRun(id=self._tracked.id, last_step=step)
            self._file.write(self._tracked)

    def _open(self) -> Any:
        if self._folder is not None:
            Path(self._folder).mkdir(parents=True, exist_ok=True)
        found = self._file.read()
        self._tracked = found or TrackerRun(id=uuid.uuid4().hex)
        experiment = comet_ml.start(
            api_key=self._api_key,
            experiment_key=self._tracked.id,
            mode="get_or_create",
            online=None if self._folder is None else False,
            experiment_config=self._settings(),
            **self._where,
        )
        self._file.write(self._tracked)
        if found is None:
            experiment.log_parameters(self._config)
        else:
            self._repeated = self._file.repeated_steps(found)
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
