"""`mb launch slurm` and `mb launch nemo-run`: a command of `mb` as the command of each rank, checked before."""

import json
import math
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mb_launch.trainer_api import LaunchCheckError, LaunchSize, SlurmJobError

COMMANDS = ("pretrain", "finetune")
"""Commands that can be launched."""
DEFAULT_RECIPE = "gpt_tiny"
FT_ARGUMENTS = ("ft.enable_ft_package=true",)
"""Arguments that let the ranks report to the monitor of ft_launcher."""
UNCHECKED = ("--resume-with-changes", "--no-numa-binding")
"""Options without a value that `mb check` does not have."""
UNCHECKED_VALUES = ("--trust",)
"""Options with a value that it does not have."""
MARGIN_SECONDS = 30
"""Time to begin a save and to end the ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedStop:
    """Predicted time of a stop with a save."""

    step_seconds: float
    write_seconds: float

    @property
    def save_seconds(self) -> int:
        """Time until a checkpoint is complete."""
        return math.ceil(self.write_seconds)

    @property
    def lead_seconds(self) -> int:
        """Time from the request of a stop to its end: the ranks agree within two steps, then save."""
        return math.ceil(2 * self.step_seconds + 1.5 * self.write_seconds + MARGIN_SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCommand:
    """Command that each rank runs, and its run folder."""

    words: Sequence[str]
    folder: Path
    stop: PredictedStop | None = None
    """What a stop takes; None: not predicted."""


def rank_command(words: Sequence[str], size: LaunchSize, *, out: Path | None) -> RankCommand:
    """Return the command of each rank, after an examination of its arguments for the size of the launch.

    Args:
        words: Arguments of `mb`.
        size: Processes of the launch.
        out: Run folder; None: that of the arguments.

    Raises:
        SlurmJobError: The arguments are no command that can be launched, or the run folder is given twice.
        LaunchCheckError: The check rejects them.
    """
    folder = run_folder(words, given=out).absolute()
    require_command(words)
    words = [*words, *(FT_ARGUMENTS if size.ft_launcher else ())]
    stop = predicted_stop(words, size)
    return RankCommand(words=["mb", *with_run_folder(words, folder)], folder=folder, stop=stop)


def run_folder(words: Sequence[str], *, given: Path | None) -> Path:
    """Return the run folder: as given, as the command names it with --out, or `runs/RECIPE`.

    Raises:
        SlurmJobError: It is given twice.
    """
    named = option_value(words, "--out")
    if named is not None and given is not None:
        raise SlurmJobError(f"--run: {given} is given, and the command has --out {named}. Leave out --run.")
    if named is not None or given is not None:
        return Path(named or given or "").expanduser()
    return Path("runs") / recipe_name(words[1:], default=DEFAULT_RECIPE)


def require_command(words: Sequence[str]) -> None:
    """Check that the arguments are a command that a launcher can start on several ranks.

    Raises:
        SlurmJobError: They are not, or request processes of their own.
    """
    if not words or words[0] not in COMMANDS:
        known = " or ".join(COMMANDS)
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


def check(words: Sequence[str], size: LaunchSize) -> None:
    """Check the arguments of a run for the size of a launch.

    Raises:
        LaunchCheckError: The check rejects them; the message contains the problems.
    """
    ended = _run("check", words, size)
    if ended.returncode != 0:
        raise LaunchCheckError(
            f"{size.nodes} nodes x {size.ranks_per_node} ranks: the check before the launch rejects the run, and "
            f"nothing is queued.\n{(ended.stdout + ended.stderr).strip()}"
        )


def predicted_stop(words: Sequence[str], size: LaunchSize) -> PredictedStop | None:
    """Return what a stop of a run takes, from its plan; None if the GPU is not named or its speed is not known.

    A run that cannot be planned, or that the plan does not accept, is checked.

    Raises:
        LaunchCheckError: The check rejects the run.
    """
    if size.gpu is None:
        check(words, size)
        return None
    planned = _run("plan", [*words, "--json"], size)
    if planned.returncode != 0:  # it does not name the problems
        check(words, size)
    try:
        plan = json.loads(planned.stdout)
    except json.JSONDecodeError:  # the check has accepted the run, but its sizes depend on data
        return None
    predicted, saves = plan["predicted"], plan["saves"]
    if predicted is None or saves is None:
        return None
    return PredictedStop(step_seconds=predicted["step_seconds"], write_seconds=saves["write_seconds"])


def _run(name: str, words: Sequence[str], size: LaunchSize) -> subprocess.CompletedProcess[str]:
    """Run `mb check` or `mb plan` with the arguments of a run, for the size of a launch."""
    command, arguments, skip = [sys.executable, "-m", "mb_trainer", name], [], False
    for word in words[1:]:
        if not skip and word not in UNCHECKED and word.partition("=")[0] not in UNCHECKED_VALUES:
            arguments.append(word)
        skip = not skip and word in UNCHECKED_VALUES
    options = [
        f"--world-size={size.nodes * size.ranks_per_node}",
        *([f"--gpu={size.gpu}"] if size.gpu else []),
    ]
    return subprocess.run([*command, *options, *arguments], capture_output=True, text=True, check=False)
