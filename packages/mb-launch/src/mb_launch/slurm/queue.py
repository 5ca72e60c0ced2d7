"""Submission, state, logs and cancellation of the Slurm jobs of a run folder. The standard library only."""

import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mb_launch.errors import JobNotFoundError, SlurmCommandError, SlurmJobError
from mb_launch.slurm.job import SlurmJob, SlurmRun
from mb_launch.slurm.script import passed_names, sbatch_script
from mb_schema.files import write_atomically
from mb_schema.json_rows import parse_row

_JOBS_FILE = "jobs.jsonl"
_FIELDS = ("JobState", "Reason", "RunTime", "TimeLimit", "Restarts", "NodeList")

Runner = Callable[[Sequence[str]], str]
"""Function that runs a command of Slurm and returns what it prints."""


def run_slurm(command: Sequence[str]) -> str:
    """Run a command of Slurm and return what it prints.

    Raises:
        SlurmCommandError: The command is not installed, or failed.
    """
    try:
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise SlurmCommandError(
            f"{command[0]}: is not installed on this machine. Run the command on a login node of the cluster, or print "
            "the script with --script-only."
        ) from error
    if ended.returncode != 0:
        reason = ended.stderr.strip() or f"exit code {ended.returncode}"
        raise SlurmCommandError(f"{command[0]}: {reason}")
    return ended.stdout


def submit(
    job: SlurmJob,
    run: SlurmRun,
    *,
    environment: Mapping[str, str] | None = None,
    runner: Runner = run_slurm,
) -> list[int]:
    """Queue the jobs of a run, store their numbers in its folder, and return them.

    The script is kept in the folder as `slurm/job.sh`.

    Args:
        job: Resources; `chain` is the number of jobs.
        run: Command and folder.
        environment: Variables of the submitting shell; None: those of this process.
        runner: Function that runs sbatch.

    Raises:
        SlurmJobError: A variable that is passed by name is not set.
        SlurmCommandError: sbatch is missing, or rejects the job.
    """
    variables = os.environ if environment is None else environment
    if missing := [name for name in passed_names(job) if name not in variables]:
        raise SlurmJobError(
            f"env: {', '.join(missing)} is not set in this shell, and only the name is given. Set it, or write "
            "NAME=VALUE."
        )
    run.logs.mkdir(parents=True, exist_ok=True)
    script = run.logs / "job.sh"
    write_atomically(script, sbatch_script(job, run))
    numbers = []
    for _ in range(job.chain):
        number = int(runner(["sbatch", "--parsable", str(script)]).partition(";")[0])
        record_job(run.folder, number)
        numbers.append(number)
    return numbers


def record_job(folder: Path, number: int) -> None:
    """Append the number of a job to the file of a run folder."""
    with (folder / "slurm" / _JOBS_FILE).open("a", encoding="utf-8") as jobs:
        jobs.write(json.dumps({"job": number, "time": time.time()}) + "\n")


def read_jobs(folder: Path) -> list[int]:
    """Return the numbers of the jobs of a run folder, oldest first, without those of lines that are cut short.

    Raises:
        JobNotFoundError: No job was submitted for this folder.
    """
    file = folder / "slurm" / _JOBS_FILE
    if not file.is_file():
        raise JobNotFoundError(
            f"{folder}: holds no {file.relative_to(folder)}: no Slurm job was queued for this run."
        )
    rows = [parse_row(line) or {} for line in file.read_bytes().splitlines()]
    return [row["job"] for row in rows if type(row.get("job")) is int]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """State of a job, as Slurm reports it."""

    job: int
    state: str
    """Slurm's word, such as PENDING or RUNNING; UNKNOWN: Slurm has forgotten the job."""
    details: Mapping[str, str]

    def __str__(self) -> str:
        set_details = (
            f"{name}={value}" for name, value in self.details.items() if value not in ("", "None", "(null)")
        )
        return " ".join([f"{self.job} {self.state}", *set_details])


def read_status(job: int, *, runner: Runner = run_slurm) -> JobStatus:
    """Return the state of a job.

    Raises:
        SlurmCommandError: Slurm cannot be reached.
    """
    try:
        printed = runner(["scontrol", "show", "job", "--oneliner", str(job)])
    except SlurmCommandError as error:
        if "Invalid job id" not in str(error):
            raise
        return JobStatus(job=job, state="UNKNOWN", details={})
    values = dict(re.findall(r"(?:^|\s)(\w+)=(\S*)", printed))
    details = {name: values[name] for name in _FIELDS[1:] if name in values}
    return JobStatus(job=job, state=values.get("JobState", "UNKNOWN"), details=details)


def cancel(jobs: Sequence[int], *, runner: Runner = run_slurm) -> list[int]:
    """Cancel those of the jobs that wait or run, newest first, and return them.

    Raises:
        SlurmCommandError: Slurm cannot be reached, or rejects it.
    """
    states = {job: read_status(job, runner=runner).state for job in sorted(jobs, reverse=True)}
    active = [job for job, state in states.items() if state in _ACTIVE]
    if active:
        runner(["scancel", *map(str, active)])
    return active


_ACTIVE = frozenset(
    {"PENDING", "CONFIGURING", "RUNNING", "SUSPENDED", "REQUEUED", "REQUEUE_HOLD", "RESIZING"}
)


def log_files(folder: Path, *, rank: int | None = None) -> list[Path]:
    """Return the logs of the newest job of a run folder: that of its script, then one for each rank.

    Args:
        folder: Run folder.
        rank: Return the log of this rank only.

    Raises:
        JobNotFoundError: No job was submitted, or it has written no such log yet.
    """
    for job in reversed(read_jobs(folder)):
        ranks = {
            int(file.stem.rpartition("rank")[2]): file for file in (folder / "slurm").glob(f"{job}-rank*.log")
        }
        script = folder / "slurm" / f"{job}.log"
        files = [*([script] if script.is_file() else []), *(ranks[each] for each in sorted(ranks))]
        if rank is not None:
            files = [ranks[rank]] if rank in ranks else []
        if files:
            return files
    which = "log" if rank is None else f"log of rank {rank}"
    raise JobNotFoundError(
        f"{folder / 'slurm'}: holds no {which}. A job writes its logs when it has started."
    )
