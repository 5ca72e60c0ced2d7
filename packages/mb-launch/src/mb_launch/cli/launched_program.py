"""Trainer whose command line mounts the launch commands: its arguments, run folder and check."""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mb_launch.errors import LaunchCheckError, SlurmJobError


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


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSize:
    """Processes of a launch, for the check before it."""

    nodes: int
    ranks_per_node: int
    gpu: str | None = None
    """Name of the GPUs; None: not checked against one."""
    ft_launcher: bool = False
    """Whether NVRx's ft_launcher starts the ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchCommand:
    """Command that each rank runs, and its run folder."""

    words: Sequence[str]
    folder: Path
    """Absolute path."""


def launch_command(
    words: Sequence[str], program: LaunchedProgram | None, size: LaunchSize, *, folder: Path
) -> LaunchCommand:
    """Return the command of each rank; of a trainer, after a check of its arguments for the size of the launch.

    Args:
        words: Arguments of the trainer; without one, the command itself.
        program: The trainer; None: the command is any program.
        size: Processes of the launch.
        folder: Run folder, as `run_folder` returns it.

    Raises:
        SlurmJobError: The arguments are no command that can be launched.
        LaunchCheckError: The check of the trainer rejects them.
    """
    folder = folder.absolute()
    if program is None:
        return LaunchCommand(words=words, folder=folder)
    require_command(program, words)
    words = [*words, *(program.ft_arguments if size.ft_launcher else ())]
    check(program, words, size)
    return LaunchCommand(words=[program.name, *with_run_folder(words, folder)], folder=folder)


def run_folder(
    words: Sequence[str], program: LaunchedProgram | None, *, given: Path | None, name: str | None
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
        return Path("runs") / (name or "run")
    return Path("runs") / recipe_name(words[1:], default=program.default_recipe)


def require_command(program: LaunchedProgram, words: Sequence[str]) -> None:
    """Check that the arguments are a command that a launcher can start on several ranks.

    Raises:
        SlurmJobError: They are not, or request processes of their own.
    """
    if not words or words[0] not in program.commands:
        known = " or ".join(program.commands)
        problem = f"{words[0]}: cannot be launched" if words else "command: is missing"
        raise SlurmJobError(f"{problem}. Write {known} after --, then its arguments.")
    if option_value(words, "--nproc") is not None:
        raise SlurmJobError(
            "--nproc: is given, but the launcher starts the ranks. Set the number of tasks of a node in front of --: "
            "--tasks-per-node on Slurm, a field of the executor with NeMo-Run."
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


def check(program: LaunchedProgram, words: Sequence[str], size: LaunchSize) -> None:
    """Check the arguments of a run for the size of a launch.

    Raises:
        LaunchCheckError: The check rejects them; the message contains the problems.
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
    options = [
        f"--world-size={size.nodes * size.ranks_per_node}",
        *([f"--gpu={size.gpu}"] if size.gpu else []),
    ]
    ended = subprocess.run([*command, *options, *arguments], capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise LaunchCheckError(
            f"{size.nodes} nodes x {size.ranks_per_node} ranks: the check before the launch rejects the run, and "
            f"nothing is queued.\n{(ended.stdout + ended.stderr).strip()}"
        )
