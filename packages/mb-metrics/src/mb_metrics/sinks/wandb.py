"""The door to Weights & Biases.

Install it with `pip install "mb-metrics[wandb]"`. The key is taken from WANDB_API_KEY or `wandb login`.
"""

import logging
import re
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import wandb
from wandb.errors import CommError, UsageError

from mb_metrics.record import Evaluation, LogInterval, MetricsRow
from mb_metrics.redact import hide_secrets
from mb_metrics.tracker_run import TrackerRun, TrackerRunFile

_logger = logging.getLogger(__name__)


class WandbSink:
    """Logs each row as a step of a W&B run, and the samples consumed as "samples vs steps", to choose as an axis.

    The run is opened at the first record, which may take seconds: put it in a `BackgroundSink`. With a run file a
    resumed job continues the same run; what W&B has after the restored step is taken back by rewinding the run.
    Where its server cannot rewind, W&B keeps the steps that it has and takes the later ones.

    Args:
        project: W&B project.
        name: Name of the run; None: W&B makes one up.
        entity: Team or user; None: the account's default.
        folder: Where W&B keeps its files, in a folder `wandb/`; None: the current folder.
        run_file: Where the run's id is kept.
        resume_step: The last step that stands; see `TrackerRunFile`.
        config: Settings of the job, shown with the run; secrets are left out.
        mode: "online", "offline" (upload later with `wandb sync`), or None: as WANDB_MODE says.
    """

    def __init__(
        self,
        project: str,
        *,
        name: str | None = None,
        entity: str | None = None,
        folder: str | Path | None = None,
        run_file: str | Path | None = None,
        resume_step: int | None = None,
        config: Mapping[str, object] | None = None,
        mode: Literal["online", "offline"] | None = None,
    ) -> None:
        self._settings: dict[str, Any] = {
            "project": project,
            "name": name,
            "entity": entity,
            "dir": None if folder is None else str(folder),
            "config": hide_secrets(config or {}),
            "mode": mode,
        }
        self._folder = None if folder is None else Path(folder)
        self._file = TrackerRunFile(run_file, resume_step=resume_step)
        self._resume_step = resume_step
        self._run: Any = None
        self._tracked: TrackerRun | None = None
        self._failed = False

    def write_rows(self, rows: Sequence[MetricsRow]) -> None:
        """Log the next steps."""
        for row in rows:
            self._log(row.step, row.values_and_samples)
        if rows:
            self._write_run_file(rows[-1].step)

    def write_interval(self, interval: LogInterval) -> None:
        """Do nothing: the last row of an interval carries its rates."""

    def write_evaluation(self, evaluation: Evaluation) -> None:
        """Log an evaluation, as a part of its step."""
        self._log(evaluation.step, evaluation.values_and_samples)
        self._write_run_file(evaluation.step)

    def write_file(self, path: Path, name: str) -> None:
        """Note a folder, a checkpoint say, as a version of an artifact that refers to where it lies.

        The artifact is called after what stands before the last "/" of the name, the version after what stands behind.
        Nothing is uploaded; single files are left out: the settings are shown already.
        """
        if not path.is_dir():
            return
        artifact = wandb.Artifact(re.sub(r"[^\w.-]", "-", name.rpartition("/")[0] or path.name), type="model")
        artifact.add_reference(path.resolve().as_uri(), checksum=False)
        self._opened().log_artifact(artifact, aliases=[path.name])

    def fail(self) -> None:
        """Let the run be shown as failed."""
        self._failed = True

    def close(self) -> None:
        """Finish the run; waits until W&B has sent what it holds."""
        if self._run is not None:
            self._run.finish(exit_code=1 if self._failed else 0)

    def _log(self, step: int, values: Mapping[str, float]) -> None:
        self._opened().log(dict(values), step=step)

    def _opened(self) -> Any:
        if self._run is None:
            self._run, self._tracked = self._open()
        return self._run

    def _write_run_file(self, step: int) -> None:
        if self._tracked is not None:
            self._tracked = TrackerRun(id=self._tracked.id, last_step=step)
            self._file.write(self._tracked)

    def _open(self) -> tuple[Any, TrackerRun]:
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)  # where it is missing, W&B writes to /tmp
        found = self._file.read()
        tracked = found or TrackerRun(id=uuid.uuid4().hex[:12])
        self._file.write(tracked)
        if found and self._file.repeated_steps(found):
            try:
                return self._init(resume_from=f"{found.id}?_step={self._resume_step}"), tracked
            except (CommError, UsageError) as error:
                _logger.warning("metrics: W&B cannot take steps back, and keeps those it has: %s", error)
        return self._init(id=tracked.id, resume="allow"), tracked

    def _init(self, **identity: Any) -> Any:
        # Not the console, nor code and git: a metrics sink sends metrics.
        settings = wandb.Settings(console="off", disable_git=True, disable_code=True)
        return wandb.init(**self._settings, settings=settings, **identity)
