"""Command line `mb-launch`: start a run on Slurm or by NeMo-Run, print its state and logs, cancel it.

Requires the extra `cli`; the command `nemo-run` the extra `nemo-run`.

A trainer mounts `queued` and adds commands that start its own runs by `LaunchOptions` and `NemoRunOptions`.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from mb_launch.errors import ExtraMissingError, JobNotFoundError, SlurmJobError
from mb_launch.nemo_run.executor_file import KINDS, read_executor
from mb_launch.nemo_run.jobs import read_nemo_run_jobs
from mb_launch.slurm.clusters import read_cluster
from mb_launch.slurm.job import LaunchSize, SlurmJob, SlurmRun
from mb_launch.slurm.options import JobOptions, option
from mb_launch.slurm.queue import cancel as cancel_jobs
from mb_launch.slurm.queue import log_files, read_jobs, read_status, submit
from mb_launch.slurm.script import sbatch_script
from mb_schema.commands import CommandWithExample, common_options, exit_codes

app = typer.Typer(
    help="Start a run on Slurm or through NeMo-Run, and look after it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
queued = typer.Typer()
"""Commands `status`, `logs` and `cancel`, which a trainer adds to its own."""

Run = Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.", show_default=False)]
Command = Annotated[list[str], typer.Argument(metavar="-- COMMAND", help="Command of each rank.")]
RunOption = Annotated[Path | None, option("--run", "Run folder; default: the command's --out, or runs/NAME.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOptions:
    """Options of `slurm` besides those of the job."""

    cluster: Annotated[
        str | None, option("--cluster", "Take defaults from this cluster of the file of clusters.")
    ] = None
    clusters: Annotated[Path | None, option("--clusters", "File of clusters; default: clusters.yaml.")] = None
    out: RunOption = None
    script_only: Annotated[bool, option("--script-only", "Print the sbatch script, and queue nothing.")] = (
        False
    )

    def job(self, given: Mapping[str, Any]) -> SlurmJob:
        """Return the job that the options describe; those of the cluster are its defaults."""
        return SlurmJob(**{**_cluster_defaults(self.cluster, self.clusters), **given})

    def start(self, job: SlurmJob, command: Sequence[str], folder: Path, *, program: str) -> None:
        """Queue the command of each rank, or print its script."""
        run = SlurmRun(command=command, folder=folder, work_dir=Path.cwd())
        if self.script_only:
            print(sbatch_script(job, run), end="")
            return
        numbers = submit(job, run)
        print(f"queued: {', '.join(map(str, numbers))} ({job.nodes} nodes, {job.world_size} ranks)")
        _print_next(program, folder)


@app.command(cls=CommandWithExample, epilog="--nodes 2 --gpus-per-node 8 -- COMMAND")
@common_options
def slurm(
    options: LaunchOptions,
    job_options: JobOptions,
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- COMMAND", help="Command of each rank.", show_default=False),
    ] = None,
) -> None:
    """Queue a run on Slurm; on preemption and before the time limit its ranks save, and the job resumes later.

    Write the options of Slurm before --, and after it the command.
    """
    with exit_codes():
        job = options.job(job_options.given())
        folder = options.out or Path("runs") / (job.job_name or "run")
        options.start(job, command or [], folder.expanduser().absolute(), program="mb-launch")


def _cluster_defaults(cluster: str | None, clusters: Path | None) -> dict[str, Any]:
    if clusters is not None and cluster is None:
        raise SlurmJobError(f"--clusters: {clusters} has no effect without --cluster. Add --cluster NAME.")
    return read_cluster(clusters or Path("clusters.yaml"), cluster) if cluster else {}


def _print_next(program: str, folder: Path) -> None:
    for action in ("status", "logs", "cancel"):
        print(f"{action + ':':<8}{program} {action} {folder}")


@dataclass(frozen=True, slots=True, kw_only=True)
class NemoRunOptions:
    """Options of `nemo-run`."""

    executor: Annotated[
        str,
        option(
            "--executor",
            f"FILE.yaml with its settings, FILE.py:NAME for one in Python, or its kind: {', '.join(KINDS)}.",
        ),
    ]
    settings: Annotated[
        list[str] | None, option("--set", "FIELD=VALUE of the executor, such as nodes=2; repeatable.")
    ] = None
    gpu: Annotated[
        str | None, option("--gpu", "GPUs of the nodes, such as h100, for the check before the launch.")
    ] = None
    out: RunOption = None
    script_only: Annotated[
        bool, option("--script-only", "Print what NeMo-Run would submit, and submit nothing.")
    ] = False

    def build(self) -> tuple[Any, LaunchSize]:
        """Return the executor of NeMo-Run, and the processes that it starts."""
        request = read_executor(self.executor, self.settings or [])
        door = _nemo_run_door()
        executor = door.build_executor(request)
        return executor, door.launch_size(executor, gpu=self.gpu)

    def start(
        self, executor: Any, size: LaunchSize, command: Sequence[str], folder: Path, *, program: str
    ) -> None:
        """Submit the command of each rank, or print what would be submitted.

        Raises:
            typer.Exit: The command was submitted; with code 1 if it failed.
        """
        run = SlurmRun(command=command, folder=folder, work_dir=Path.cwd())
        if self.script_only:
            print(_nemo_run_door().dry_run(executor, run))
            return
        submitted = _nemo_run_door().submit(executor, run)
        ranks = size.nodes * size.ranks_per_node
        print(f"{submitted.state}: {submitted.handle} ({size.nodes} nodes, {ranks} ranks)")
        _print_next(program, folder)
        raise typer.Exit(0 if submitted.succeeded else 1)


@app.command("nemo-run", cls=CommandWithExample, epilog="--executor local --set ntasks_per_node=2 -- COMMAND")
@common_options
def nemo_run(options: NemoRunOptions, command: Command) -> None:
    """Start a run through an executor of NeMo-Run: this machine, Slurm over SSH, Docker, Kubernetes, a cloud.

    Slurm and clouds queue it and return. On other executors the command prints the log and waits for the run's end.
    """
    with exit_codes():
        executor, size = options.build()
        folder = (options.out or Path("runs") / "run").expanduser().absolute()
        options.start(executor, size, command, folder, program="mb-launch")


def _nemo_run_door() -> Any:
    """Import the module that imports NeMo-Run, which takes several seconds."""
    # torch warns of a package that NeMo-Run requires: a user cannot change that
    warnings.filterwarnings("ignore", message="The pynvml package is deprecated", category=FutureWarning)
    return import_door("mb_launch.nemo_run.executors", needed_by="nemo-run", extra="nemo-run")


def import_door(module: str, *, needed_by: str, extra: str) -> Any:
    """Import a module that needs an extra of this package, for the command or option that needs it.

    Raises:
        ExtraMissingError: The extra is not installed.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise ExtraMissingError(
            f"{needed_by}: needs {error.name}, which is not installed. Install it: "
            f'pip install "mb-launch[{extra}]"'
        ) from error


@queued.command(cls=CommandWithExample, epilog="runs/gpt_tiny")
def status(run: Run) -> None:
    """Print the state of each job of a run, oldest first."""
    with exit_codes():
        experiments = read_nemo_run_jobs(run)
        for job in _slurm_jobs(run, optional=bool(experiments)):
            print(read_status(job))
        for experiment in experiments:
            print(_nemo_run_door().read_status(experiment))


def _slurm_jobs(run: Path, *, optional: bool) -> list[int]:
    try:
        return read_jobs(run)
    except JobNotFoundError:
        if optional:
            return []
        raise


@queued.command(cls=CommandWithExample, epilog="runs/gpt_tiny --rank 7")
def logs(
    run: Run,
    rank: Annotated[int | None, option("--rank", "Print the log of this rank only.", min=0)] = None,
    lines: Annotated[int, typer.Option("--lines", min=1, help="Last lines of each log.")] = 20,
) -> None:
    """Print the end of the logs of the newest job of a run: that of its script, then one for each rank."""
    with exit_codes():
        experiments = read_nemo_run_jobs(run)
        if experiments and not _slurm_jobs(run, optional=True):
            if rank is not None:
                raise SlurmJobError(
                    "--rank: NeMo-Run keeps one log of all ranks for this executor. Leave out --rank."
                )
            print("\n".join(_nemo_run_door().read_log(experiments[-1]).splitlines()[-lines:]))
            return
        for file in log_files(run, rank=rank):
            print(f"==> {file} <==")
            for line in file.read_text(errors="replace", encoding="utf-8").splitlines()[-lines:]:
                print(line)


@queued.command(cls=CommandWithExample, epilog="runs/gpt_tiny")
def cancel(run: Run) -> None:
    """Cancel the jobs of a run that wait or run. Ranks receive SIGTERM, and SIGKILL after Slurm's KillWait."""
    with exit_codes():
        experiments = read_nemo_run_jobs(run)
        cancelled = [str(job) for job in cancel_jobs(_slurm_jobs(run, optional=bool(experiments)))]
        for experiment in reversed(experiments):
            cancelled += _nemo_run_door().cancel(experiment)
    print(f"cancelled: {', '.join(cancelled)}" if cancelled else "no job of this run waits or runs")


app.add_typer(queued)
