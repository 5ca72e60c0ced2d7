"""The sbatch script of a run. The standard library only."""

import shlex
from collections.abc import Iterator

from mb_launch.slurm_job import SlurmJob, SlurmRun

_STOP = """\
# {when}
# Each rank saves after its current step and exits with 0.
stopped=no
stop() {{
    [ "$stopped" = yes ] && return
    stopped=yes
    scancel --signal=TERM "$SLURM_JOB_ID" # the ranks only, not this script
}}
trap stop USR1 TERM
"""
_WAIT = """\
ranks=$!
wait "$ranks"
code=$?
# A signal ends wait: wait again until the ranks have ended.
while kill -0 "$ranks" 2>/dev/null; do
    wait "$ranks"
    code=$?
done
"""
_REQUEUE = """\
# On preemption Slurm signals the ranks and not this script, but records the time. A job that was cancelled is not
# RUNNING any more, and does not enter the queue again.
job=$(scontrol show job --oneliner "$SLURM_JOB_ID")
case "$job" in *" PreemptTime=2"*) stopped=yes ;; esac
if [ "$stopped" = yes ] && [ "$code" = 0 ]; then
    case "$job" in *" JobState=RUNNING "*) scontrol requeue "$SLURM_JOB_ID" ;; esac
fi
"""


def sbatch_script(job: SlurmJob, run: SlurmRun) -> str:
    """Return the sbatch script that starts a command on every rank of a job.

    srun starts the command unchanged; each rank reads its number from the variables of srun (`read_world`). The script
    contains no value of a variable that is passed by name.
    """
    folder = shlex.quote(str(run.logs))
    lines = ["#!/bin/bash", f"# Submit with: mkdir -p {folder} && sbatch THIS_FILE"]
    lines += [f"#SBATCH {option}" for option in _sbatch_options(job, run)]
    settings = [setting for setting in job.env if "=" in setting]
    exports = [f"export {name}={shlex.quote(text)}" for name, _, text in (s.partition("=") for s in settings)]
    before = (
        f"{job.signal_seconds} s before the time limit Slurm sends USR1 to this script; on preemption TERM."
    )
    stop = _STOP.format(when=before if job.signal_seconds else "On preemption Slurm sends TERM.")
    parts = ["\n".join(lines), "\n".join(exports), stop.rstrip(), f"{_srun(job, run)} &\n{_WAIT.rstrip()}"]
    parts += [_REQUEUE.rstrip()] if job.requeue else []
    return "\n\n".join([*filter(None, parts), 'exit "$code"']) + "\n"


def _sbatch_options(job: SlurmJob, run: SlurmRun) -> Iterator[str]:
    yield f"--job-name={job.job_name or run.folder.name}"
    yield f"--nodes={job.nodes}"
    yield f"--ntasks-per-node={job.ranks_per_node}"
    yield from [f"--gpus-per-node={job.gpus_per_node}"] if job.gpus_per_node else []
    for name in ("cpus_per_task", "partition", "account", "qos", "time"):
        if (value := getattr(job, name)) is not None:
            yield f"--{name.replace('_', '-')}={value}"
    yield f"--chdir={run.work_dir}"
    yield f"--output={run.logs}/%j.log"
    yield "--open-mode=append"
    yield "--dependency=singleton"
    yield "--requeue" if job.requeue else "--no-requeue"
    yield from [f"--signal=B:USR1@{job.signal_seconds}"] if job.signal_seconds else []
    yield f"--export={','.join(['ALL', *passed_names(job)])}"
    yield from job.sbatch


def passed_names(job: SlurmJob) -> list[str]:
    """Return the names of the variables whose values the submitting shell passes."""
    return [setting for setting in job.env if "=" not in setting]


def _srun(job: SlurmJob, run: SlurmRun) -> str:
    options = ["--kill-on-bad-exit=1", "--open-mode=append", f"--output={run.logs}/%j-rank%t.log"]
    if job.cpus_per_task is not None:  # srun does not take it from sbatch since Slurm 22.05
        options.append(f"--cpus-per-task={job.cpus_per_task}")
    if job.container_image is not None:
        own = dict.fromkeys(f"{path}:{path}" for path in (run.work_dir, run.folder))
        mounts = ",".join([*own, *([job.container_mounts] if job.container_mounts else [])])
        options += [f"--container-image={job.container_image}", f"--container-mounts={mounts}"]
        options.append(f"--container-workdir={run.work_dir}")
    words = [*map(shlex.quote, options), shlex.join(run.command)]
    return " \\\n    ".join(["srun", *words])
