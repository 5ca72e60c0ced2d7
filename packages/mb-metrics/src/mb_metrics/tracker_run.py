"""Which run of a tracker a job writes to: a small file in the run folder, so that a resumed job finds it."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackerRun:
    """A run at a tracker."""

    id: str
    """The tracker's id of it."""
    last_step: int | None = None
    """The last step that the tracker took; None: none yet."""


class TrackerRunFile:
    """Remembers a `TrackerRun`.

    Args:
        path: The file; None remembers nothing, so that every job is a run of its own.
        resume_step: The last step that stands. One before the first step (0, or -1 where steps count from 0) begins
            a new run; None continues the run of the file, if there is one, after what is there.
    """

    def __init__(self, path: str | Path | None, *, resume_step: int | None = None) -> None:
        self._path = None if path is None else Path(path)
        self._resume_step = resume_step

    def read(self) -> TrackerRun | None:
        """Return the run to continue; None: begin a new one.

        Raises:
            ValueError: the file is damaged.
        """
        fresh = self._resume_step is not None and self._resume_step <= 0
        if self._path is None or fresh or not self._path.exists():
            return None
        try:
            values = json.loads(self._path.read_bytes())
            return TrackerRun(id=str(values["id"]), last_step=values.get("last_step"))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{self._path}: holds no run id ({error!r}), so the run cannot be continued at its tracker. Mend the "
                'file ({"id": "..."}), or remove it to begin a new run there.'
            ) from error

    def repeated_steps(self, run: TrackerRun) -> range:
        """Return the steps that the tracker has of `run` and that are being run again."""
        if self._resume_step is None or run.last_step is None:
            return range(0)
        return range(self._resume_step + 1, run.last_step + 1)

    def write(self, run: TrackerRun) -> None:
        """Write the file anew, whole at any time."""
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        new = self._path.with_name(self._path.name + ".new")
        new.write_text(json.dumps(asdict(run)) + "\n")
        new.replace(self._path)
