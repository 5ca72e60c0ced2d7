"""Command line `mb-launch`: start a run on Slurm, print its state and logs, cancel it. Requires the extra `cli`.

A program that mounts `app` names itself with `set_program`; the commands then take its arguments and check them first.
"""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from mb_launch.cli_errors import exit_codes
from mb_launch.clusters import read_cluster
from mb_launch.errors import SlurmCommandError, SlurmJobError
from mb_launch.slurm_job import SlurmJob, SlurmRun
from mb_launch.slurm_queue import cancel as cancel_jobs
from mb_launch.slurm_queue import log_files, read_jobs, read_status, submit
from mb_launch.slurm_script import sbatch_script

_MOUNT = "mb_launch.program"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchedProgram:
    """Trainer whose command line mounts these commands."""

    name: str
    """Program that srun starts, such as `mb`; commands are its arguments."""
    module: str
    """The same program for `python -m`; its command `check` receives the arguments of a run with `--world-size`."""
    default_recipe: str
    """Recipe of a run that names none; a run without `--out` is in `runs/RECIPE`."""
    commands: Sequence[str] = ("pretrain", "finetune")
    """Commands that can be launched."""
    ft_arguments: Sequence[str] = ("ft.enable_ft_package=true",)
    """Arguments that let its ranks report to the monitor of ft_launcher; the default is Megatron-Bridge's field."""
    unchecked: Sequence[str] = ("--resume-with-changes", "--no-numa-binding")
    """Options without a value that the command which checks does not have."""
    unchecked_values: Sequence[str] = ("--trust",)
    """Options with a value that it does not have."""


def set_program(context: typer.Context, program: LaunchedProgram) -> None:
    """Set the trainer for the commands below `context`. A program that mounts them calls it in its callback."""
    context.meta[_MOUNT] = program


class CommandWithExample(TyperCommand):
    """Command whose epilog contains the arguments of an example; help prints them after the name of the program."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help of the command."""
        arguments, self.epilog = self.epilog, f"Example: {ctx.command_path} {self.epilog}"
        try:
            super().format_help(ctx, formatter)
        finally:
            self.epilog = arguments


app = typer.Typer(
    help="Start a run on Slurm, and look after it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
Run = Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.", show_default=False)]


def _option(name: str, text: str, **more: Any) -> Any:
    return typer.Option(name, help=text, show_default=False, **more)


@app.command(cls=CommandWithExample, epilog="--nodes 2 --gpus-per-node 8 -- COMMAND")
def slurm(  # noqa: PLR0913 - options of a command
    context: typer.Context,
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND", help="Command of each rank.")],
    nodes: Annotated[int | None, _option("--nodes", "Nodes; default 1.")] = None,
    gpus_per_node: Annotated[
        int | None, _option("--gpus-per-node", "GPUs of each node, one rank each; default 0.")
    ] = None,
    tasks_per_node: Annotated[
        int | None, _option("--tasks-per-node", "Ranks of each node; default: its GPUs, or 1.")
    ] = None,
    cpus_per_task: Annotated[int | None, _option("--cpus-per-task", "CPU cores of each rank.")] = None,
    partition: Annotated[str | None, _option("--partition", "Partition.")] = None,
    account: Annotated[str | None, _option("--account", "Account.")] = None,
    qos: Annotated[str | None, _option("--qos", "Quality of service.")] = None,
    time: Annotated[str | None, _option("--time", "Time limit, such as 04:00:00.")] = None,
    job_name: Annotated[
        str | None, _option("--job-name", "Name; jobs of one name run one by one. Default: the folder's.")
    ] = None,
    gpu: Annotated[
        str | None,
        _option(
            "--gpu", "GPUs of the nodes, such as h100, for the check before the launch and their environment."
        ),
    ] = None,
    signal_seconds: Annotated[
        int | None, _option("--signal-seconds", "Save so long before the limit; default 120.")
    ] = None,
    requeue: Annotated[
        bool | None, _option("--requeue/--no-requeue", "Queue again after a preemption; default: yes.")
    ] = None,
    chain: Annotated[
        int | None, _option("--chain", "Jobs to queue; each resumes the run. Default 1.")
    ] = None,
    ft_launcher: Annotated[
        bool | None,
        _option("--ft-launcher", "Start the ranks by NVRx's ft_launcher, which restarts them in place."),
    ] = None,
    max_restarts: Annotated[
        int | None, _option("--max-restarts", "Restarts by ft_launcher; default 3.")
    ] = None,
    container_image: Annotated[str | None, _option("--container-image", "Image for pyxis.")] = None,
    container_mounts: Annotated[
        str | None, _option("--container-mounts", "SRC:DST, several with commas.")
    ] = None,
    env: Annotated[
        list[str] | None, _option("--env", "NAME=VALUE, or NAME to pass its value; repeatable.")
    ] = None,
    sbatch: Annotated[
        list[str] | None, _option("--sbatch", "Another option of sbatch, as --sbatch=--NAME; repeatable.")
    ] = None,
    cluster: Annotated[
        str | None, _option("--cluster", "Take defaults from this cluster of the file of clusters.")
    ] = None,
    clusters: Annotated[
        Path | None, _option("--clusters", "File of clusters; default: clusters.yaml.")
    ] = None,
    out: Annotated[
        Path | None, _option("--run", "Run folder; default: the command's --out, or runs/NAME.")
    ] = None,
    script_only: Annotated[
        bool, _option("--script-only", "Print the sbatch script, and queue nothing.")
    ] = False,
) -> None:
    """Queue a run on Slurm; on preemption and before the time limit its ranks save, and the job resumes later.

    Write the options of Slurm before --, and after it the command.
    """
    given = {
        "nodes": nodes,
        "gpus_per_node": gpus_per_node,
        "tasks_per_node": tasks_per_node,
        "cpus_per_task": cpus_per_task,
        "partition": partition,
        "account": account,
        "qos": qos,
        "time": time,
        "job_name": job_name,
        "gpu": gpu,
        "signal_seconds": signal_seconds,
        "requeue": requeue,
        "chain": chain,
        "ft_launcher": ft_launcher,
        "max_restarts": max_restarts,
        "container_image": container_image,
        "container_mounts": container_mounts,
        "env": env,
        "sbatch": sbatch,
    }
    with exit_codes():
        if clusters is not None and cluster is None:
            raise SlurmJobError(
                f"--clusters: {clusters} has no effect without --cluster. Add --cluster NAME."
            )
        defaults = read_cluster(clusters or Path("clusters.yaml"), cluster) if cluster else {}
        job = SlurmJob(**{**defaults, **{name: value for name, value in given.items() if value is not None}})
        program: LaunchedProgram | None = context.meta.get(_MOUNT)
        words = list(command)
        folder = run_folder(words, program, job, given=out).absolute()
        if program is not None:
            require_command(program, words)
            words += program.ft_arguments if job.ft_launcher else ()
            check(program, words, job)
            words = [program.name, *with_run_folder(words, folder)]
        run = SlurmRun(command=words, folder=folder, work_dir=Path.cwd())
        if script_only:
            print(sbatch_script(job, run), end="")
            return
        name = "mb-launch" if program is None else f"{program.name} launch"
        numbers = submit(job, run)
    print(f"queued: {', '.join(map(str, numbers))} ({job.nodes} nodes, {job.world_size} ranks)")
    for action in ("status", "logs", "cancel"):
        print(f"{action + ':':<8}{name} {action} {folder}")


def run_folder(
    words: Sequence[str], program: LaunchedProgram | None, job: SlurmJob, *, given: Path | None
) -> Path:
    """Return the run folder: as given, as a command names it with --out, or `runs/NAME` of its recipe or job.

    Raises:
        SlurmJobError: It is given twice.
    """
    named = option_value(words, "--out")
    if named is not None and given is not None:
        raise SlurmJobError(f"--run: {given} is given, and the command has --out {named}. Leave out --run.")
    if named is not None or given is not None:
        return Path(named or given or "").expanduser()
    if program is None:
        return Path("runs") / (job.job_name or "run")
    return Path("runs") / recipe_name(words[1:], default=program.default_recipe)


def require_command(program: LaunchedProgram, words: Sequence[str]) -> None:
    """Check that the arguments are a command that Slurm can start on several ranks.

    Raises:
        SlurmJobError: They are not, or request processes of their own.
    """
    if words[0] not in program.commands:
        known = " or ".join(program.commands)
        raise SlurmJobError(f"{words[0]}: cannot be launched. Write {known} after --, then its arguments.")
    if option_value(words, "--nproc") is not None:
        raise SlurmJobError(
            "--nproc: is given, but srun starts the ranks. Set --tasks-per-node in front of --."
        )


def option_value(words: Sequence[str], option: str) -> str | None:
    """Return the value of `--option VALUE` or `--option=VALUE`, or None."""
    for word, after in zip(words, [*words[1:], ""], strict=True):
        if word == "--":
            return None
        if word == option:
            return after
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
    return None


def recipe_name(words: Sequence[str], *, default: str) -> str:
    """Return the name of the recipe, or of its file without the suffix, in the arguments of a run."""
    skip = False
    for word in words:
        if skip or word.startswith("-"):
            skip = not skip and word.startswith("--") and word != "--" and "=" not in word
        elif "=" not in word:
            return Path(word.partition(":")[0]).stem
    return default


def with_run_folder(words: Sequence[str], folder: Path) -> list[str]:
    """Return the arguments of a run with its folder, as its first option."""
    if option_value(words, "--out") is not None:
        return list(words)
    return [words[0], f"--out={folder}", *words[1:]]


def check(program: LaunchedProgram, words: Sequence[str], job: SlurmJob) -> None:
    """Check the arguments of a run for the nodes of a job; print the problems.

    Raises:
        SlurmCommandError: The check rejects them.
    """
    command, arguments, skip = [sys.executable, "-m", program.module, "check"], [], False
    for word in words[1:]:
        if (
            not skip
            and word not in program.unchecked
            and word.partition("=")[0] not in program.unchecked_values
        ):
            arguments.append(word)
        skip = not skip and word in program.unchecked_values
    options = [f"--world-size={job.world_size}", *([f"--gpu={job.gpu}"] if job.gpu else [])]
    ended = subprocess.run([*command, *options, *arguments], capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise SlurmCommandError(
            f"{job.nodes} nodes x {job.ranks_per_node} ranks: the check before the launch rejects the run, and nothing "
            f"is queued.\n{(ended.stdout + ended.stderr).strip()}"
        )


@app.command(cls=CommandWithExample, epilog="runs/gpt_tiny")
def status(run: Run) -> None:
    """Print the state of each job of a run, oldest first."""
    with exit_codes():
        for job in read_jobs(run):
            print(read_status(job))


@app.command(cls=CommandWithExample, epilog="runs/gpt_tiny --rank 7")
def logs(
    run: Run,
    rank: Annotated[int | None, _option("--rank", "Print the log of this rank only.", min=0)] = None,
    lines: Annotated[int, typer.Option("--lines", min=1, help="Last lines of each log.")] = 20,
) -> None:
    """Print the end of the logs of the newest job of a run: that of its script, then one for each rank."""
    with exit_codes():
        for file in log_files(run, rank=rank):
            print(f"==> {file} <==")
            for line in file.read_text(errors="replace").splitlines()[-lines:]:
                print(line)


@app.command(cls=CommandWithExample, epilog="runs/gpt_tiny")
def cancel(run: Run) -> None:
    """Cancel the jobs of a run that wait or run. Ranks receive SIGTERM, and SIGKILL after Slurm's KillWait."""
    with exit_codes():
        cancelled = cancel_jobs(read_jobs(run))
    print(f"cancelled: {', '.join(map(str, cancelled))}" if cancelled else "no job of this run waits or runs")
