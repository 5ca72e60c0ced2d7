"""Command line `mb-launch`: start a run on Slurm or by NeMo-Run, print its state and logs, cancel it.

Requires the extra `cli`; the command `nemo-run` the extra `nemo-run`.

A program that mounts `app` names itself with `set_program`; the commands then take its arguments and check them first.
"""

import warnings
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from mb_launch.cli.launched_program import LaunchedProgram, LaunchSize, launch_command, run_folder
from mb_launch.errors import ExtraMissingError, JobNotFoundError, SlurmJobError
from mb_launch.nemo_run.executor_file import KINDS, read_executor
from mb_launch.nemo_run.jobs import read_experiments
from mb_launch.slurm.clusters import read_cluster
from mb_launch.slurm.job import SlurmJob, SlurmRun
from mb_launch.slurm.options import job_options, option
from mb_launch.slurm.queue import cancel as cancel_jobs
from mb_launch.slurm.queue import log_files, read_jobs, read_status, submit
from mb_launch.slurm.script import sbatch_script
from mb_schema.commands import CommandWithExample, exit_codes

_MOUNT = "mb_launch.program"


def set_program(context: typer.Context, program: LaunchedProgram) -> None:
    """Set the trainer for the commands below `context`. A program that mounts them calls it in its callback."""
    context.meta[_MOUNT] = program


app = typer.Typer(
    help="Start a run on Slurm or through NeMo-Run, and look after it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
Run = Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.", show_default=False)]
Command = Annotated[list[str], typer.Argument(metavar="-- COMMAND", help="Command of each rank.")]
RunOption = Annotated[Path | None, option("--run", "Run folder; default: the command's --out, or runs/NAME.")]


@app.command(cls=CommandWithExample, epilog="--nodes 2 --gpus-per-node 8 -- COMMAND")
@job_options
def slurm(
    context: typer.Context,
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- COMMAND", help="Command of each rank.", show_default=False),
    ] = None,
    given: Mapping[str, Any] | None = None,
    cluster: Annotated[
        str | None, option("--cluster", "Take defaults from this cluster of the file of clusters.")
    ] = None,
    clusters: Annotated[
        Path | None, option("--clusters", "File of clusters; default: clusters.yaml.")
    ] = None,
    cloudai: Annotated[
        Path | None,
        option("--cloudai", "Take command and resources from this test definition of CloudAI, in TOML."),
    ] = None,
    out: RunOption = None,
    script_only: Annotated[
        bool, option("--script-only", "Print the sbatch script, and queue nothing.")
    ] = False,
) -> None:
    """Queue a run on Slurm; on preemption and before the time limit its ranks save, and the job resumes later.

    Write the options of Slurm before --, and after it the command.
    """
    with exit_codes():
        program: LaunchedProgram | None = context.meta.get(_MOUNT)
        tested, command = _read_cloudai(cloudai, program, command or [])
        job = SlurmJob(**{**_cluster_defaults(cluster, clusters), **tested, **(given or {})})
        size = LaunchSize(
            nodes=job.nodes, ranks_per_node=job.ranks_per_node, gpu=job.gpu, ft_launcher=job.ft_launcher
        )
        folder = run_folder(command, program, given=out, name=job.job_name)
        launched = launch_command(command, program, size, folder=folder)
        run = SlurmRun(command=launched.words, folder=launched.folder, work_dir=Path.cwd())
        if script_only:
            print(sbatch_script(job, run), end="")
            return
        numbers = submit(job, run)
    print(f"queued: {', '.join(map(str, numbers))} ({job.nodes} nodes, {job.world_size} ranks)")
    _print_next(program, launched.folder)


def _cluster_defaults(cluster: str | None, clusters: Path | None) -> dict[str, Any]:
    if clusters is not None and cluster is None:
        raise SlurmJobError(f"--clusters: {clusters} has no effect without --cluster. Add --cluster NAME.")
    return read_cluster(clusters or Path("clusters.yaml"), cluster) if cluster else {}


def _read_cloudai(
    file: Path | None, program: LaunchedProgram | None, words: list[str]
) -> tuple[dict[str, Any], list[str]]:
    """Return the fields of the job and the command that a test definition determines; without one, the words as given.

    Words after -- are further arguments of the command, which replace those of the test.
    """
    if file is None:
        return {}, words
    if program is None:
        raise SlurmJobError("--cloudai: needs a trainer, because a test names a recipe. Use mb launch slurm.")
    try:
        door = import_module("mb_launch.cloudai.slurm_run")
    except ModuleNotFoundError as error:
        raise ExtraMissingError(
            f'--cloudai: needs {error.name}, which is not installed. Install it: pip install "mb-launch[cloudai]"'
        ) from error
    test = door.read_test(file)
    return door.job_settings(test), [*door.trainer_arguments(test), *words]


def _print_next(program: LaunchedProgram | None, folder: Path) -> None:
    name = "mb-launch" if program is None else f"{program.name} launch"
    for action in ("status", "logs", "cancel"):
        print(f"{action + ':':<8}{name} {action} {folder}")


@app.command("nemo-run", cls=CommandWithExample, epilog="--executor local --set ntasks_per_node=2 -- COMMAND")
def nemo_run(
    context: typer.Context,
    command: Command,
    executor: Annotated[
        str,
        option(
            "--executor",
            f"FILE.yaml with its settings, FILE.py:NAME for one in Python, or its kind: {', '.join(KINDS)}.",
        ),
    ],
    settings: Annotated[
        list[str] | None, option("--set", "FIELD=VALUE of the executor, such as nodes=2; repeatable.")
    ] = None,
    gpu: Annotated[
        str | None, option("--gpu", "GPUs of the nodes, such as h100, for the check before the launch.")
    ] = None,
    out: RunOption = None,
    script_only: Annotated[
        bool, option("--script-only", "Print what NeMo-Run would submit, and submit nothing.")
    ] = False,
) -> None:
    """Start a run through an executor of NeMo-Run: this machine, Slurm over SSH, Docker, Kubernetes, a cloud.

    Slurm and clouds queue it and return. On other executors the command prints the log and waits for the run's end.
    """
    with exit_codes():
        request = read_executor(executor, settings or [])
        door = _nemo_run_door()
        built = door.build_executor(request)
        program: LaunchedProgram | None = context.meta.get(_MOUNT)
        size = door.launch_size(built, gpu=gpu)
        folder = run_folder(command, program, given=out, name=None)
        launched = launch_command(command, program, size, folder=folder)
        run = SlurmRun(command=launched.words, folder=launched.folder, work_dir=Path.cwd())
        if script_only:
            print(door.dry_run(built, run))
            return
        submitted = door.submit(built, run)
    print(
        f"{submitted.state}: {submitted.handle} ({size.nodes} nodes, {size.nodes * size.ranks_per_node} ranks)"
    )
    _print_next(program, launched.folder)
    raise typer.Exit(0 if submitted.succeeded else 1)


def _nemo_run_door() -> Any:
    """Import the module that imports NeMo-Run, which takes several seconds."""
    # torch warns of a package that NeMo-Run requires: a user cannot change that
    warnings.filterwarnings("ignore", message="The pynvml package is deprecated", category=FutureWarning)
    try:
        return import_module("mb_launch.nemo_run.executors")
    except ModuleNotFoundError as error:
        raise ExtraMissingError(
            f'nemo-run: needs {error.name}, which is not installed. Install it: pip install "mb-launch[nemo-run]"'
        ) from error


@app.command(cls=CommandWithExample, epilog="runs/gpt_tiny")
def status(run: Run) -> None:
    """Print the state of each job of a run, oldest first."""
    with exit_codes():
        experiments = read_experiments(run)
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


@app.command(cls=CommandWithExample, epilog="runs/gpt_tiny --rank 7")
def logs(
    run: Run,
    rank: Annotated[int | None, option("--rank", "Print the log of this rank only.", min=0)] = None,
    lines: Annotated[int, typer.Option("--lines", min=1, help="Last lines of each log.")] = 20,
) -> None:
    """Print the end of the logs of the newest job of a run: that of its script, then one for each rank."""
    with exit_codes():
        experiments = read_experiments(run)
        if experiments and not _slurm_jobs(run, optional=True):
            if rank is not None:
                raise SlurmJobError(
                    "--rank: NeMo-Run keeps one log of all ranks for this executor. Leave out --rank."
                )
            print("\n".join(_nemo_run_door().read_log(experiments[-1]).splitlines()[-lines:]))
            return
        for file in log_files(run, rank=rank):
            print(f"==> {file} <==")
            for line in file.read_text(errors="replace").splitlines()[-lines:]:
                print(line)


@app.command(cls=CommandWithExample, epilog="runs/gpt_tiny")
def cancel(run: Run) -> None:
    """Cancel the jobs of a run that wait or run. Ranks receive SIGTERM, and SIGKILL after Slurm's KillWait."""
    with exit_codes():
        experiments = read_experiments(run)
        cancelled = [str(job) for job in cancel_jobs(_slurm_jobs(run, optional=bool(experiments)))]
        for experiment in reversed(experiments):
            cancelled += _nemo_run_door().cancel(experiment)
    print(f"cancelled: {', '.join(cancelled)}" if cancelled else "no job of this run waits or runs")
