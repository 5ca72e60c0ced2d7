"""Jobs that NeMo-Run has submitted for a run folder. The standard library only."""

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from mb_launch.errors import JobNotFoundError

_FILE = Path("nemo_run") / "jobs.jsonl"
_NAME = re.compile(r"[\w.-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class NemoRunJob:
    """A job of NeMo-Run."""

    experiment: str
    """Identifier of the experiment, in NeMo-Run's own folder."""
    job: str
    """Name of the job in the experiment."""
    executor: str
    """Kind of the executor."""

    def __str__(self) -> str:
        return f"{self.experiment}/{self.job}"


def record_nemo_run_job(folder: Path, job: NemoRunJob) -> None:
    """Append a job to the file of a run folder."""
    file = folder / _FILE
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as jobs:
        jobs.write(json.dumps(asdict(job)) + "\n")


def read_nemo_run_jobs(folder: Path) -> list[NemoRunJob]:
    """Return the jobs of a run folder, oldest first; none if NeMo-Run has not started it.

    Raises:
        JobNotFoundError: A line of the file is not a job. An identifier is a name, not a path out of NeMo-Run's folder.
    """
    file = folder / _FILE
    if not file.is_file():
        return []
    jobs = []
    for line in file.read_text(encoding="utf-8").splitlines():
        try:
            job = NemoRunJob(**json.loads(line))
        except (TypeError, ValueError) as error:
            raise JobNotFoundError(f"{file}: {line!r} is not a job of NeMo-Run. Remove the line.") from error
        if not all(isinstance(name, str) and _NAME.fullmatch(name) for name in (job.experiment, job.job)):
            raise JobNotFoundError(f"{file}: {job} is not a name of a job of NeMo-Run. Remove the line.")
        jobs.append(job)
    return jobs
