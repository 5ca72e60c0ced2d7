"""Run of a tracker: one that the calling program has opened, or a new one, whose id a resumed job reads from a file."""

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from operator import index
from pathlib import Path

from mb_metrics.errors import DamagedRunFileError
from mb_schema.files import write_atomically

_logger = logging.getLogger(__name__)
PREFIX = "mb_metrics/"
"""Default prefix of the metrics in the run of another program, so that they do not replace its metrics."""


def require_one_run(
    sink: str, *, run: object | None, prefix: str | None, new: str, settings: Mapping[str, object]
) -> None:
    """Check that a sink has either an open run or the name under which it opens a new one.

    Args:
        sink: Name of the sink.
        run: The open run; None: not given.
        prefix: Prefix of the metrics in the open run; None: not given.
        new: The setting that is required for a new run.
        settings: Settings of a new run; None: not given.

    Raises:
        ValueError: neither a run nor `new` is given, or both, or a prefix without a run.
    """
    if run is None and settings[new] is None:
        raise ValueError(
            f"{sink}: neither {new} nor run is given ({new}=None, run=None), so there is no run to write to. Pass "
            f"{new}= to open a run, or run= with a run that is already open."
        )
    set_names = [name for name, value in settings.items() if value is not None]
    if run is not None and set_names:
        raise ValueError(
            f"{sink}: {', '.join(set_names)} cannot be combined with run, because an open run keeps the settings with "
            "which it was opened. Omit them, or omit run to open a new one."
        )
    if run is None and prefix is not None:
        raise ValueError(
            f"{sink}: prefix ({prefix!r}) requires run, because a run that the sink opens has no other metrics. Omit "
            "prefix, or pass run=."
        )


def prefixed(values: Mapping[str, float], prefix: str) -> dict[str, float]:
    """Return metrics under their names in the run of another program."""
    return {f"{prefix}{name}": value for name, value in values.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackerRun:
    """Run of a tracker."""

    id: str
    """Id of the run at the tracker."""
    last_step: int | None = None
    """Last step that the tracker received; None: none yet."""
    last_evaluation: int | None = None
    """Step of the last evaluation that the tracker received, if the sink stores it; None: none yet."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Metric to its name at the tracker; empty: the tracker takes the names as they are."""


class TrackerRunFile:
    """File that stores a `TrackerRun`.

    Args:
        path: The file; None: the run is not stored, and every job starts a new run.
        resume_step: The last step to keep. A step before the first one (0, or -1 if steps count from 0) starts a new
            run; None continues the run in the file, if there is one, after its last step.
    """

    def __init__(self, path: str | Path | None, *, resume_step: int | None = None) -> None:
        self._path = None if path is None else Path(path)
        self._resume_step = resume_step

    def read(self) -> TrackerRun | None:
        """Return the run to continue, or None to start a new one.

        Raises:
            DamagedRunFileError: the file is damaged.
        """
        fresh = self._resume_step is not None and self._resume_step <= 0
        if self._path is None or fresh or not self._path.exists():
            return None
        try:
            values = json.loads(self._path.read_bytes())
            last_step, last_evaluation = values.get("last_step"), values.get("last_evaluation")
            return TrackerRun(
                id=str(values["id"]),
                last_step=None if last_step is None else index(last_step),
                last_evaluation=None if last_evaluation is None else index(last_evaluation),
                names={str(name): str(written) for name, written in values.get("names", {}).items()},
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DamagedRunFileError(
                f"{self._path}: contains no run id ({error!r}). The run cannot be continued at its tracker. Fix the "
                'file ({"id": "..."}), or remove it to start a new run.'
            ) from error

    def repeated_steps(self, run: TrackerRun) -> range:
        """Return the steps of `run` that the tracker already has and that the job repeats."""
        if self._resume_step is None or run.last_step is None:
            return range(0)
        return range(self._resume_step + 1, run.last_step + 1)

    def warn_of_missing_steps(self, sink: str, *, every: int) -> None:
        """Log the steps before the resume step that the tracker lacks: those that a killed process had not sent.

        Args:
            sink: Name of the sink.
            every: Steps between rows that the tracker receives.
        """
        run, resume = self.read(), self._resume_step
        if run is None or resume is None:
            return
        first = (run.last_step or 0) // every * every + every
        if first <= resume:
            steps = f"step {first}" if first == resume else f"steps {first} to {resume}"
            _logger.warning(
                "metrics: %s: the tracker lacks %s, which the previous process had not sent when it ended; "
                "metrics.jsonl has them",
                sink,
                steps,
            )

    def write(self, run: TrackerRun) -> None:
        """Replace the file atomically."""
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        given = {
            name: value
            for name, value in asdict(run).items()
            if value or name not in ("names", "last_evaluation")
        }
        write_atomically(self._path, json.dumps(given) + "\n")
