"""Adapter for MLflow.

Install it with `pip install "mb-metrics[mlflow]"`. User, password and token are read from MLflow's environment
variables (MLFLOW_TRACKING_USERNAME, ...) only.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar, cast

from mlflow.entities import Metric, Param, Run, RunTag
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from mb_metrics.names import different_mlflow_names
from mb_metrics.recorder.record import Evaluation, MetricsRow
from mb_metrics.redact import hide_secrets
from mb_metrics.sinks.sink import Sink
from mb_metrics.sinks.tracker_run import PREFIX, TrackerRun, TrackerRunFile, prefixed, require_one_run

_Item = TypeVar("_Item")

_METRICS_PER_REQUEST = 1000
_PARAMS_PER_REQUEST = 100
_LONGEST_PARAM = 6000
_LAST_STEP = "mb_metrics.last_step"
_REPEATED = "mb_metrics.repeated_steps"
_PASSING = {"TEMPORARILY_UNAVAILABLE", "REQUEST_LIMIT_EXCEEDED", "INTERNAL_ERROR"}


class MlflowSink(Sink):
    """Sink that logs each row as a step of an MLflow run, under valid MLflow names (`mb_metrics.names.mlflow_name`).

    Of two metrics with the same valid name, the second one has a hash at the end of its name. The run file stores these
    names, so that a resumed job continues each series under its own.

    The run is opened at the first record. A server that is down raises `ConnectionError`, so that a `BackgroundSink`
    retries. With a run file, a resumed job continues the same run. MLflow cannot delete values: repeated steps that it
    already has are not logged again, and the tag "mb_metrics.repeated_steps" lists them. MLflow's SQL stores represent
    an infinite value as the largest double. The active run of MLflow's fluent interface is neither used nor changed.

    With `run`, metrics are added, with a prefix, to a run that the program has opened; the run is not ended, and its
    name, tags and parameters do not change.

    Args:
        experiment: MLflow experiment of a new run; it is created if needed.
        run_name: Name of the run.
        tracking_uri: Address of the server or store; None: MLFLOW_TRACKING_URI.
        tags: Tags of the run.
        description: Free text shown with the run.
        run_file: File that stores the id of the run.
        resume_step: The last step to keep; see `TrackerRunFile`.
        config: Settings of the job, logged as parameters; secrets are omitted.
        files: If True, `write_file` uploads files.
        run: An open run, such as `mlflow.active_run()`; None: start a new run in `experiment`.
        prefix: Prefix of the metrics in `run`; None: "mb_metrics/".

    Raises:
        ValueError: neither `experiment` nor `run` is given; a setting of a new run is combined with `run`, or `prefix`
            with `experiment`.
    """

    def __init__(  # noqa: PLR0913 - settings, each by name
        self,
        experiment: str | None = None,
        *,
        run_name: str | None = None,
        tracking_uri: str | None = None,
        tags: Mapping[str, str] | None = None,
        description: str | None = None,
        run_file: str | Path | None = None,
        resume_step: int | None = None,
        config: Mapping[str, object] | None = None,
        files: bool = True,
        run: Run | None = None,
        prefix: str | None = None,
    ) -> None:
        settings: dict[str, object] = {
            "experiment": experiment,
            "run_name": run_name,
            "tags": tags,
            "description": description,
        }
        settings |= {"run_file": run_file, "resume_step": resume_step, "config": config}
        require_one_run("MlflowSink", run=run, prefix=prefix, new="experiment", settings=settings)
        self._is_host_run = run is not None
        self._prefix = "" if run is None else PREFIX if prefix is None else prefix
        self._experiment = experiment
        self._run_name = run_name
        self._uri = tracking_uri
        self._tags = dict(tags or {}) | ({"mlflow.note.content": description} if description else {})
        self._file = TrackerRunFile(run_file, resume_step=resume_step)
        self._config = hide_secrets(config or {})
        self._files = files
        self._client: MlflowClient | None = None
        self._run_id: str | None = None if run is None else run.info.run_id
        self._repeated = range(0)
        self._sent: int | None = None
        self._keys: dict[str, str] = {}
        self._tracked: TrackerRun | None = None
        """The run as its file has it; None: not opened, or a run of the program."""
        self._failed = False

    def write_rows(self, rows: Sequence[MetricsRow]) -> None:
        """Log the next steps; a retry after an error continues with the first batch that was not logged."""
        client, run = self._opened()
        with _ConnectionErrors():
            for batch in self._batches(rows):
                last = batch[-1].step
                metrics = [metric for row in batch for metric in self._metrics(row, row.values_and_samples)]
                tags = [] if self._is_host_run else [RunTag(_LAST_STEP, str(last))]
                for chunk in _chunks(metrics, _METRICS_PER_REQUEST):
                    client.log_batch(run, metrics=chunk, tags=tags)
                self._sent = last
                self._store(TrackerRun(id=run, last_step=last, names=self._keys))

    def write_evaluation(self, evaluation: Evaluation) -> None:
        """Log an evaluation."""
        client, run = self._opened()
        metrics = self._metrics(evaluation, evaluation.values)
        with _ConnectionErrors():
            if evaluation.step in self._repeated:
                # A process that was killed in an evaluation has sent its step, but not the evaluation.
                metrics = [each for each in metrics if not _has_step(client, run, each)]
            for chunk in _chunks(metrics, _METRICS_PER_REQUEST):
                client.log_batch(run, metrics=chunk)
        if self._tracked is not None and self._tracked.names != self._keys:
            self._store(replace(self._tracked, names=self._keys))

    def write_file(self, path: Path, name: str) -> None:
        """Upload a file, or a folder with its contents, under a name."""
        if not self._files:
            return
        client, run = self._opened()
        with _ConnectionErrors():
            if path.is_dir():
                client.log_artifacts(run, str(path), artifact_path=name)
            else:
                client.log_artifact(run, str(path), artifact_path=name)

    def fail(self) -> None:
        """Mark the run as failed, if the sink started it."""
        self._failed = True

    def close(self) -> None:
        """Set the final status of the run, if the sink started it."""
        if self._client is not None and self._run_id is not None and not self._is_host_run:
            with _ConnectionErrors():
                self._client.set_terminated(self._run_id, status="FAILED" if self._failed else "FINISHED")

    def _metrics(self, record: MetricsRow | Evaluation, values: Mapping[str, float]) -> list[Metric]:
        milliseconds = int(record.time * 1000)
        recorded = prefixed(values, self._prefix)
        self._keys = different_mlflow_names(recorded, self._keys)
        return [
            Metric(self._keys[name], value, milliseconds, record.step) for name, value in recorded.items()
        ]

    def _batches(self, rows: Sequence[MetricsRow]) -> Iterator[list[MetricsRow]]:
        """Yield the rows that MLflow does not have yet, in batches that fit into one request."""
        batch: list[MetricsRow] = []
        size = 0
        for row in rows:
            if row.step in self._repeated or (self._sent is not None and row.step <= self._sent):
                continue
            count = len(row.values) + 1
            if batch and size + count > _METRICS_PER_REQUEST:
                yield batch
                batch, size = [], 0
            batch.append(row)
            size += count
        if batch:
            yield batch

    def _opened(self) -> tuple[MlflowClient, str]:
        if self._client is None or self._run_id is None:
            with _ConnectionErrors():
                self._client = MlflowClient(tracking_uri=self._uri)
                self._run_id = self._run_id or self._continued(self._client) or self._begun(self._client)
        return self._client, self._run_id

    def _continued(self, client: MlflowClient) -> str | None:
        previous = self._file.read()
        if previous is None:
            return None
        run = client.get_run(previous.id)
        last = run.data.tags.get(_LAST_STEP)
        self._tracked = replace(previous, last_step=int(last) if last else None)
        self._keys = dict(previous.names)
        repeated = self._file.repeated_steps(self._tracked)
        client.update_run(previous.id, status="RUNNING")
        if repeated:
            client.set_tag(previous.id, _REPEATED, f"{repeated.start} to {repeated.stop - 1}")
        self._log_params(client, previous.id, known=run.data.params)
        self._repeated = repeated
        return previous.id

    def _begun(self, client: MlflowClient) -> str:
        experiment = client.get_experiment_by_name(self._experiment)
        experiment_id = experiment.experiment_id if experiment else client.create_experiment(self._experiment)
        if self._tracked is None:  # else the parameters of the run that was created could not be logged
            created = client.create_run(experiment_id, run_name=self._run_name, tags=self._tags)
            self._store(TrackerRun(id=created.info.run_id))
        run_id = cast("TrackerRun", self._tracked).id
        self._log_params(client, run_id, known={})
        return run_id

    def _store(self, tracked: TrackerRun) -> None:
        self._tracked = tracked
        self._file.write(tracked)

    def _log_params(self, client: MlflowClient, run: str, *, known: Mapping[str, str]) -> None:
        # MLflow parameters are immutable: a resumed job cannot change them and logs only new ones.
        keys = different_mlflow_names(self._config, {})
        new = [
            Param(keys[name], str(value)[:_LONGEST_PARAM])
            for name, value in self._config.items()
            if keys[name] not in known
        ]
        for chunk in _chunks(new, _PARAMS_PER_REQUEST):
            client.log_batch(run, params=chunk)


class _ConnectionErrors:
    """Context manager that converts MLflow's errors for an unreachable server to `ConnectionError`."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, MlflowException) and error.error_code in _PASSING:
            raise ConnectionError(f"MLflow is unreachable: {error}") from error


def _has_step(client: MlflowClient, run: str, metric: Metric) -> bool:
    """Return whether MLflow has a value of a metric at its step."""
    return any(each.step == metric.step for each in client.get_metric_history(run, metric.key))


def _chunks(items: Sequence[_Item], size: int) -> Iterator[Sequence[_Item]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
