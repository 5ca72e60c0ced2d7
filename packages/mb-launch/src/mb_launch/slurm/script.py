"""The sbatch script of a run: options, environment, signals, the start of the ranks, and requeueing.

The standard library only.
"""

import re
import shlex
from collections.abc import Iterator, Mapping

from mb_launch.slurm.job import SlurmJob, SlurmRun

COMMON: Mapping[str, str] = {
    "TORCH_NCCL_AVOID_RECORD_STREAMS": "1",
    "TORCH_NCCL_HIGH_PRIORITY": "1",
    "NCCL_NVLS_ENABLE": "0",
    "TOKENIZERS_PARALLELISM": "False",
}
"""Variables on every GPU: less memory kept for collectives, their streams before others, no NVLink SHARP buffers, and
no warning of tokenizers in forked processes."""

GRACE: Mapping[str, str] = {"NCCL_NET_GDR_LEVEL": "PHB", "NCCL_NET_GDR_C2C": "1"}
"""Variables on Grace systems, whose network cards reach the GPU through the CPU: NCCL 2.25, and 2.26 and newer."""

GRACE_GPUS = frozenset({"gh200", "gb200", "gb300"})


def gpu_environment(gpu: str | None) -> dict[str, str]:
    """Return the variables for a GPU, given as "gb200" or as nvidia-smi prints it; none without one."""
    if gpu is None:
        return {}
    words = set(re.split(r"[^a-z0-9]+", gpu.lower()))
    return {**COMMON, **(GRACE if words & GRACE_GPUS else {})}


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
# A signal ends wait: wait again until the ranks have ended. They may end while `stop` runs, so that only a further
# wait, which returns at once, has their code.
while kill -0 "$ranks" 2>/dev/null; do
    wait "$ranks"
done
wait "$ranks"
code=$?
"""
# HAS_SAVED is replaced by the condition under which the job was stopped and has saved.
_REQUEUE = """\
# On preemption Slurm signals the ranks and not this script, but records the time. A job that was cancelled is not
# RUNNING any more, and does not enter the queue again.
job=$(scontrol show job --oneliner "$SLURM_JOB_ID")
case "$job" in *" PreemptTime=2"*) stopped=yes ;; esac
if HAS_SAVED; then
    case "$job" in *" JobState=RUNNING "*) scontrol requeue "$SLURM_JOB_ID" ;; esac
fi
"""
# The launchers of all nodes meet at the first node of the job. Two jobs on one node have different ports.
_RENDEZVOUS = """\
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
address=$(scontrol show node --oneliner "$head" | grep -o "NodeAddr=[^ ]*" | cut -d = -f 2)
port=$((20000 + SLURM_JOB_ID % 20000))
"""
DEFAULT_RESTARTS = 3
"""Restarts by ft_launcher if `SlurmJob.max_restarts` is None."""
SETUP_SECONDS, STEP_SECONDS, CHECKPOINTING_SECONDS = 600, 180, 420
"""Time limits of the sections of a rank, after which ft_launcher restarts the ranks; those of Megatron-Bridge. A rank
that reports no sections is not limited."""
TERM_TIMEOUT_SECONDS = 1800
"""Seconds that ft_launcher gives the ranks to save after a signal, before it kills them."""


def sbatch_script(job: SlurmJob, run: SlurmRun) -> str:
    """Return the sbatch script that starts a command on every rank of a job.

    srun starts the command unchanged; each rank reads its number from the variables of srun (`read_world`). The script
    contains no value of a variable that is passed by name.
    """
    folder = shlex.quote(str(run.logs))
    lines = ["#!/bin/bash", f"# Submit with: mkdir -p {folder} && sbatch THIS_FILE"]
    lines += [f"#SBATCH {option}" for option in _sbatch_options(job, run)]
    settings = [setting for setting in job.env if "=" in setting]
    exports = []
    for setting in settings:
        name, _, text = setting.partition("=")
        exports.append(f"export {name}={shlex.quote(text)}")
    exports += _gpu_exports(job)
    when = "On preemption Slurm sends TERM."
    if job.lead_seconds:
        when = (
            f"{job.lead_seconds} s before the time limit Slurm sends USR1 to this script; on preemption TERM."
        )
    stop = _STOP.format(when=when)
    parts = ["\n".join(lines), "\n".join(exports), stop.rstrip(), f"{_srun(job, run)} &\n{_WAIT.rstrip()}"]
    # ft_launcher that is stopped by a signal does not exit with 0, although its ranks have saved
    has_saved = '[ "$stopped" = yes ]' if job.ft_launcher else '[ "$stopped" = yes ] && [ "$code" = 0 ]'
    if job.requeue:
        parts.append(_REQUEUE.rstrip().replace("HAS_SAVED", has_saved))
    return "\n\n".join([*filter(None, parts), 'exit "$code"']) + "\n"


def _sbatch_options(job: SlurmJob, run: SlurmRun) -> Iterator[str]:
    """Yield the options of the script for sbatch; those of `SlurmJob.sbatch` are last, and replace those before."""
    yield f"--job-name={job.job_name or run.folder.name}"
    yield f"--nodes={job.nodes}"
    yield f"--ntasks-per-node={1 if job.ft_launcher else job.ranks_per_node}"
    if job.gpus_per_node:
        yield f"--gpus-per-node={job.gpus_per_node}"
    for name in ("cpus_per_task", "partition", "account", "qos", "time"):
        if (value := getattr(job, name)) is not None:
            yield f"--{name.replace('_', '-')}={value}"
    yield f"--chdir={run.work_dir}"
    yield f"--output={run.logs}/%j.log"
    yield "--open-mode=append"
    yield "--dependency=singleton"
    yield "--requeue" if job.requeue else "--no-requeue"
    if job.lead_seconds:
        yield f"--signal=B:USR1@{job.lead_seconds}"
    yield f"--export={','.join(['ALL', *passed_names(job)])}"
    yield from job.sbatch


def passed_names(job: SlurmJob) -> list[str]:
    """Return the names of the variables whose values the submitting shell passes."""
    return [setting for setting in job.env if "=" not in setting]


def _srun(job: SlurmJob, run: SlurmRun) -> str:
    """Return the command that starts each rank, or an ft_launcher on each node, after the lines that it needs."""
    options = ["--kill-on-bad-exit=1", "--open-mode=append", f"--output={run.logs}/%j-rank%t.log"]
    if job.cpus_per_task is not None:  # srun does not take it from sbatch since Slurm 22.05
        options.append(f"--cpus-per-task={job.cpus_per_task}")
    if job.container_image is not None:
        mounts = [*dict.fromkeys(f"{path}:{path}" for path in (run.work_dir, run.folder))]
        if job.container_mounts:
            mounts.append(job.container_mounts)
        options += [f"--container-image={job.container_image}", f"--container-mounts={','.join(mounts)}"]
        options.append(f"--container-workdir={run.work_dir}")
    words = [*map(shlex.quote, options), *_launcher(job), shlex.join(run.command)]
    command = " \\\n    ".join(["srun", *words])
    return _RENDEZVOUS + command if job.ft_launcher else command


def _gpu_exports(job: SlurmJob) -> list[str]:
    """Return a line for each variable of the GPU generation; a variable of the shell or of `env` is kept."""
    names_in_env = {setting.partition("=")[0] for setting in job.env}
    variables = {name: value for name, value in gpu_environment(job.gpu).items() if name not in names_in_env}
    lines = [f'export {name}="${{{name}-{value}}}"' for name, value in variables.items()]
    return [f"# For {job.gpu}; a variable of the submitting shell is kept.", *lines] if lines else []


def _launcher(job: SlurmJob) -> list[str]:
    """Return the part of the command that starts ft_launcher, one for each node; none without it."""
    if not job.ft_launcher:
        return []
    return [
        "ft_launcher",
        f"--nnodes={job.nodes}",
        f"--nproc-per-node={job.ranks_per_node}",
        "--rdzv-backend=c10d",
        '--rdzv-endpoint="$address:$port"',
        '--rdzv-id="$SLURM_JOB_ID"',
        f"--max-restarts={DEFAULT_RESTARTS if job.max_restarts is None else job.max_restarts}",
        f"--term-timeout={TERM_TIMEOUT_SECONDS}",
        f"--ft-param-rank_section_timeouts={_section_timeouts(job)}",
        "--no-python",
    ]


def _section_timeouts(job: SlurmJob) -> str:
    """Return the time limits of the sections: a save may take three times as long as predicted, and so may a load."""
    longest_save = 3 * (job.save_seconds or 0)
    saving = max(CHECKPOINTING_SECONDS, longest_save)
    return f"setup:{SETUP_SECONDS + longest_save},step:{STEP_SECONDS},checkpointing:{saving}"
