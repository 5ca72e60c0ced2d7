"""Runs through the executors of NeMo-Run. Imports nemo_run (extra `nemo-run`).

Each rank runs the same shell script, which NeMo-Run stores next to the job: NeMo-Run itself quotes arguments twice in
one executor and not at all in another. Executors that share the file system with the submitting machine start it in
the submitting directory; on others it starts in NeMo-Run's folder with the packaged code.
"""

import logging
import os
import shlex
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, fields, replace
from io import StringIO
from pathlib import Path
from typing import Any

import nemo_run as run
from invoke.exceptions import Failure
from nemo_run.config import get_nemorun_home, set_nemorun_home

from mb_launch.errors import ExecutorFileError, NemoRunError, nearest
from mb_launch.nemo_run.executor_file import ExecutorRequest
from mb_launch.nemo_run.jobs import NemoRunJob, record_nemo_run_job
from mb_launch.slurm.job import LaunchSize, SlurmRun
from mb_launch.slurm.queue import record_job

EXECUTORS: dict[str, type[run.Executor]] = {
    "local": run.LocalExecutor,
    "slurm": run.SlurmExecutor,
    "docker": run.DockerExecutor,
    "kubeflow": run.KubeflowExecutor,
    "skypilot": run.SkypilotExecutor,
    "skypilot_jobs": run.SkypilotJobsExecutor,
    "dgxcloud": run.DGXCloudExecutor,
    "lepton": run.LeptonExecutor,
}
"""Kind -> class of NeMo-Run."""

PACKAGERS: dict[str, type[run.Packager]] = {
    "none": run.Packager,
    "git": run.GitArchivePackager,
    "pattern": run.PatternPackager,
}
"""Name of a packager -> class: what is copied to the job."""

QUEUED = (
    run.SlurmExecutor,
    run.SkypilotExecutor,
    run.SkypilotJobsExecutor,
    run.DGXCloudExecutor,
    run.LeptonExecutor,
)
"""Executors from which NeMo-Run detaches. The others end with the process that started them."""

SIGNAL = "TERM@120"
"""Signal of Slurm to the ranks, 120 s before the time limit, unless the executor has one: they save and exit."""

JOB = "run"
"""Name of the job in its experiment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmittedJob:
    """A job after its submission, or after its end where NeMo-Run cannot detach from it."""

    handle: str
    state: str
    succeeded: bool


def build_executor(request: ExecutorRequest) -> run.Executor:
    """Return the executor that a user requests.

    Ranks are started by torchrun if there are several on an executor other than Slurm, whose srun starts them.

    Raises:
        ExecutorFileError: A field is unknown or missing, a value is rejected, or the Python file defines no executor.
    """
    if request.python_file is not None:
        return _from_python(request)
    kind = EXECUTORS[request.kind or ""]
    values = dict(request.fields)
    _reject_unknown(request.source, kind, values)
    for name, build in (("packager", _packager), ("tunnel", _tunnel), ("launcher", _launcher)):
        if name in values:
            values[name] = build(request.source, values[name])
    try:
        executor = kind(**values)
    except (TypeError, ValueError, AssertionError, ImportError) as error:
        raise ExecutorFileError(f"{request.source}: NeMo-Run rejects the executor ({error}).") from error
    _require_counts(request.source, executor)
    if isinstance(executor, run.SlurmExecutor):
        executor.signal = executor.signal or SIGNAL
        if "packager" not in values and isinstance(executor.tunnel, run.LocalTunnel):
            executor.packager = run.Packager()  # the submitting directory is there
    elif executor.launcher is None and executor.nnodes() * executor.nproc_per_node() > 1:
        executor.launcher = "torchrun"
    executor.env_vars = {"LOGLEVEL": "WARNING", **executor.env_vars}  # NeMo-Run sets INFO for torchrun
    return executor


def _from_python(request: ExecutorRequest) -> run.Executor:
    try:
        executor = run.import_executor(request.name, str(request.python_file))
    except AttributeError as error:
        raise ExecutorFileError(f"{request.source}: the file does not define {request.name}.") from error
    if not isinstance(executor, run.Executor):
        raise ExecutorFileError(
            f"{request.source}: is a {type(executor).__name__}, not an executor of NeMo-Run. Name an Executor, or a "
            "function that returns one."
        )
    return executor


def _reject_unknown(source: str, kind: type[Any], values: dict[str, Any]) -> None:
    field_names = [field.name for field in fields(kind) if field.init]
    for name in values:
        if name not in field_names:
            raise ExecutorFileError(
                f"{source}: {name} is unknown to {kind.__name__}. {nearest(name, field_names)}"
            )


def _require_counts(source: str, executor: run.Executor) -> None:
    for name, value in (("nodes", executor.nnodes()), ("processes of a node", executor.nproc_per_node())):
        if type(value) is not int or value < 1:
            raise ExecutorFileError(
                f"{source}: the number of {name} is {value!r}. Set a whole number of at least 1."
            )


def _packager(source: str, value: Any) -> run.Packager:
    options = value if isinstance(value, dict) else {"kind": value}
    return _built(source, "packager", PACKAGERS, options)


def _tunnel(source: str, value: Any) -> Any:
    tunnels = {"ssh": run.SSHTunnel, "local": run.LocalTunnel}
    options = value if isinstance(value, dict) else {"kind": value}
    return _built(source, "tunnel", tunnels, {"kind": "ssh", **options} if "host" in options else options)


def _launcher(source: str, value: Any) -> Any:
    launchers = {"torchrun": run.Torchrun, "ft": run.FaultTolerance}
    return _built(source, "launcher", launchers, value if isinstance(value, dict) else {"kind": value})


def _built(source: str, name: str, kinds: dict[str, type[Any]], options: dict[str, Any]) -> Any:
    kind = options.get("kind")
    if kind not in kinds:
        raise ExecutorFileError(f"{source}: {name} {kind!r} is unknown. Known: {', '.join(kinds)}.")
    values = {key: value for key, value in options.items() if key != "kind"}
    _reject_unknown(f"{source}: {name}", kinds[kind], values)
    if kinds[kind] is run.LocalTunnel:
        values.setdefault("job_dir", "")
    try:
        return kinds[kind](**values)
    except TypeError as error:
        raise ExecutorFileError(f"{source}: {name}: NeMo-Run rejects it ({error}).") from error


def launch_size(executor: run.Executor, *, gpu: str | None) -> LaunchSize:
    """Return the number of nodes and ranks of an executor."""
    ranks = executor.nproc_per_node()
    if isinstance(executor, run.SlurmExecutor) and executor.launcher is None:
        ranks = executor.ntasks_per_node  # srun starts them, however many GPUs there are
    return LaunchSize(nodes=executor.nnodes(), ranks_per_node=ranks, gpu=gpu)


def job_script(command: SlurmRun, *, shared_files: bool) -> str:
    """Return the shell script that each rank runs."""
    enter = f"cd {shlex.quote(str(command.work_dir))} || exit 1\n" if shared_files else ""
    return f"{enter}exec {shlex.join(command.command)}\n"


def shares_files(executor: run.Executor) -> bool:
    """Return whether the job sees the files of this machine under the same paths."""
    if isinstance(executor, run.SlurmExecutor):
        return isinstance(executor.tunnel, run.LocalTunnel)
    return isinstance(executor, run.LocalExecutor)


def dry_run(executor: run.Executor, command: SlurmRun) -> str:
    """Return what NeMo-Run would submit: the request or sbatch script, then the script of each rank."""
    with (
        tempfile.TemporaryDirectory() as home,
        _nemo_run_home(home),
        _experiment(executor, command) as experiment,
    ):
        experiment.dryrun(log=False, delete_exp_dir=False)
        (job,) = experiment.jobs
        request = str(job._dryrun_info)
    request = request.replace(home, get_nemorun_home())
    script = job_script(command, shared_files=shares_files(executor))
    return f"{request.rstrip()}\n\n# Script of each rank\n{script}".rstrip()


def submit(executor: run.Executor, command: SlurmRun) -> SubmittedJob:
    """Submit a run, record it in the run folder, and wait for its end where NeMo-Run cannot detach from it.

    The log is printed while it waits.

    Raises:
        NemoRunError: NeMo-Run could not submit it.
    """
    queued = isinstance(executor, QUEUED)
    kind = next((name for name, each in EXECUTORS.items() if type(executor) is each), type(executor).__name__)
    try:
        with _path_of_this_python(), _experiment(executor, command) as experiment:
            (job,) = experiment.jobs
            record = NemoRunJob(experiment=experiment._id, job=job.id, executor=kind)
            local_slurm = isinstance(executor, run.SlurmExecutor) and shares_files(executor)
            if local_slurm:
                command.logs.mkdir(parents=True, exist_ok=True)
            else:
                record_nemo_run_job(command.folder, record)
            experiment.run(detach=queued, tail_logs=not queued)
            if local_slurm:
                record_job(command.folder, int(job.handle.rpartition("/")[2]))
    except (Failure, OSError, RuntimeError, AssertionError) as error:
        raise NemoRunError(f"NeMo-Run could not run the job ({' '.join(str(error).split())}).") from error
    state = "queued" if queued else job.state.name.lower()
    return SubmittedJob(handle=job.handle, state=state, succeeded=queued or job.state.name == "SUCCEEDED")


def read_status(job: NemoRunJob) -> str:
    """Return the state of a job, as NeMo-Run reports it, in one line."""
    status = _found(job).status(return_dict=True)[job.job]
    return f"{job} {status['status'].name} executor={job.executor} handle={status['handle']}"


def read_log(job: NemoRunJob) -> str:
    """Return the log of a job."""
    experiment, printed = _found(job), StringIO()
    with redirect_stderr(printed):
        experiment.logs(job.job)
    return printed.getvalue()


def cancel(job: NemoRunJob) -> list[str]:
    """Cancel a job that waits or runs, and return it, or nothing.

    Raises:
        NemoRunError: It runs in the foreground of another process.
    """
    experiment = _found(job)
    state = experiment.status(return_dict=True)[job.job]["status"]
    if state.name not in ("SUBMITTED", "PENDING", "RUNNING", "UNKNOWN"):
        return []
    if job.executor == "local":
        raise NemoRunError(f"{job}: runs as long as the command that started it. Press Ctrl-C there.")
    experiment.cancel(job.job)
    return [str(job)]


def _found(job: NemoRunJob) -> Any:
    if not (
        Path(get_nemorun_home()) / "experiments" / job.experiment.rpartition("_")[0] / job.experiment
    ).is_dir():
        raise NemoRunError(
            f"{job}: is not in {get_nemorun_home()}, where NeMo-Run keeps its experiments. Set NEMORUN_HOME to the "
            "folder of the machine that submitted it."
        )
    return run.Experiment.from_id(job.experiment)


@contextmanager
def _experiment(executor: run.Executor, command: SlurmRun) -> Iterator[Any]:
    """Open an experiment with one job."""
    for noisy in ("torchx", "nemo_run"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    shared = shares_files(executor)
    if isinstance(executor, run.SlurmExecutor) and shared:
        executor = _with_logs_in_run_folder(executor, command)
    task = run.Script(inline=job_script(command, shared_files=shared))
    with run.Experiment(
        command.folder.name,
        executor=executor,
        log_level="WARN",
        clean_mode=True,
        enable_goodbye_message=False,
        skip_status_at_exit=True,
    ) as experiment:
        experiment.add(task, executor=executor, name=JOB)
        yield experiment


def _with_logs_in_run_folder(executor: run.SlurmExecutor, command: SlurmRun) -> run.SlurmExecutor:
    """Return an executor whose script and ranks write the logs that `log_files` finds, as a script of `slurm` does."""
    ranks = [f"--output={command.logs}/%j-rank%t.log", "--open-mode=append"]
    mounts = executor.container_mounts
    if executor.container_image is not None:
        mounts = [
            *dict.fromkeys([*mounts, *(f"{path}:{path}" for path in (command.work_dir, command.folder))])
        ]
    return replace(
        executor,
        container_mounts=mounts,
        srun_args=[*(executor.srun_args or []), *ranks],
        additional_parameters={"output": f"{command.logs}/%j.log", **(executor.additional_parameters or {})},
        poll_estimated_start_time=False,
    )


@contextmanager
def _nemo_run_home(folder: str) -> Iterator[None]:
    before = get_nemorun_home()
    set_nemorun_home(folder)
    try:
        yield
    finally:
        set_nemorun_home(before)


@contextmanager
def _path_of_this_python() -> Iterator[None]:
    """Let the local executor find the programs of this interpreter, such as torchrun."""
    before = os.environ.get("PATH", "")
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{before}"
    try:
        yield
    finally:
        os.environ["PATH"] = before
