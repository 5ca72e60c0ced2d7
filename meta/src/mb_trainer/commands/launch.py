"""`mb launch slurm` and `mb launch nemo-run`: a command of `mb` as the command of each rank, checked before."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mb_config.trainer_api import ALLOW_OOM
from mb_launch.trainer_api import LaunchCheckError, LaunchSize, SlurmJobError
from mb_trainer.commands.megatron_run import take_over

COMMANDS = ("pretrain", "finetune")
"""Commands that can be launched."""
DEFAULT_RECIPE = "gpt_tiny"
FT_ARGUMENTS = ("ft.enable_ft_package=true",)
"""Arguments that let the ranks report to the monitor of ft_launcher."""
MARGIN_SECONDS = 30
"""Time to begin a save and to end the ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunWords:
    """Words of a command that trains, by the option that they belong to, without those that a check does not read."""

    recipe: Sequence[str] = ()
    config: Sequence[str] = ()
    out: str | None = None
    nproc: str | None = None
    allow_oom: bool = False
    imports: Sequence[str] = ()
    from_megatron_lm: str | None = None
    script: str | None = None
    variable: Sequence[str] = ()
    ignore_unknown: bool = False


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


def rank_command(
    words: Sequence[str], size: LaunchSize, *, out: Path | None, parse: Callable[[Sequence[str]], RunWords]
) -> RankCommand:
    """Return the command of each rank, after an examination of its arguments for the size of the launch.

    Args:
        words: Arguments of `mb`.
        size: Processes of the launch.
        out: Run folder; None: that of the arguments.
        parse: Returns the values of the options of a command that is launched.

    Raises:
        SlurmJobError: The arguments are no command that can be launched, or the run folder is given twice.
        LaunchCheckError: The check rejects them.
        ConfigReadError, CheckpointError: A run of Megatron-LM cannot be taken over.
    """
    if not words or words[0] not in COMMANDS:
        known = " or ".join(COMMANDS)
        problem = f"{words[0]}: cannot be launched" if words else "command: is missing"
        raise SlurmJobError(f"{problem}. Write {known} after --, then its arguments.")
    words = [*words, *(FT_ARGUMENTS if size.ft_launcher else ())]
    given = parse(words)
    folder = run_folder(given, out=out).absolute()
    if given.nproc is not None:
        raise SlurmJobError(
            "--nproc: is given, but the launcher starts the ranks. Set the number of tasks of a node in front of --: "
            "--tasks-per-node on Slurm, a field of the executor with NeMo-Run."
        )
    recipe = given.recipe
    if given.from_megatron_lm is not None:  # as each rank does it
        found = take_over(
            Path(given.from_megatron_lm),
            script=None if given.script is None else Path(given.script),
            variables=given.variable,
            ignore_unknown=given.ignore_unknown,
            out=folder,
            overrides=recipe,
        )
        recipe = [*found.arguments, *recipe]
    stop = predicted_stop(replace(given, recipe=recipe), size)
    command = [*words] if given.out is not None else [words[0], f"--out={folder}", *words[1:]]
    return RankCommand(words=["mb", *command], folder=folder, stop=stop)


def run_folder(given: RunWords, *, out: Path | None) -> Path:
    """Return the run folder: as given, as the command names it with --out, or as the command chooses it.

    Raises:
        SlurmJobError: It is given twice.
    """
    if given.out is not None and out is not None:
        raise SlurmJobError(f"--run: {out} is given, and the command has --out {given.out}. Leave out --run.")
    if given.out is not None or out is not None:
        return Path(given.out or out or "").expanduser()
    if given.from_megatron_lm is not None:
        return Path("runs") / Path(given.from_megatron_lm).resolve().name
    return Path("runs") / recipe_name(given.recipe, default=DEFAULT_RECIPE)


def recipe_name(words: Sequence[str], *, default: str) -> str:
    """Return the name of the recipe, or of its file without the suffix, in the words of a request."""
    return next((Path(word.partition(":")[0]).stem for word in words if "=" not in word), default)


def check(given: RunWords, size: LaunchSize) -> None:
    """Check the arguments of a run for the size of a launch.

    Raises:
        LaunchCheckError: The check rejects them; the message contains the problems.
    """
    ended = _run("check", given, size)
    if ended.returncode != 0:
        raise LaunchCheckError(
            f"{size.nodes} nodes x {size.ranks_per_node} ranks: the check before the launch rejects the run, and "
            f"nothing is queued.\n{(ended.stdout + ended.stderr).strip()}"
        )


def predicted_stop(given: RunWords, size: LaunchSize) -> PredictedStop | None:
    """Return what a stop of a run takes, from its plan; None if the GPU is not named or its speed is not known.

    A run that cannot be planned, or that the plan does not accept, is checked.

    Raises:
        LaunchCheckError: The check rejects the run.
    """
    if size.gpu is None:
        check(given, size)
        return None
    planned = _run("plan", given, size, "--json")
    if planned.returncode != 0:  # it does not name the problems
        check(given, size)
    try:
        plan = json.loads(planned.stdout)
    except json.JSONDecodeError:  # the check has accepted the run, but its sizes depend on data
        return None
    predicted, saves = plan["predicted"], plan["saves"]
    if predicted is None or saves is None:
        return None
    return PredictedStop(step_seconds=predicted["step_seconds"], write_seconds=saves["write_seconds"])


def _run(name: str, given: RunWords, size: LaunchSize, *further: str) -> subprocess.CompletedProcess[str]:
    """Run `mb check` or `mb plan` with the arguments of a run, for the size of a launch."""
    options = [
        f"--world-size={size.nodes * size.ranks_per_node}",
        *([f"--gpu={size.gpu}"] if size.gpu else []),
        *(f"--config={file}" for file in given.config),
        *(f"--import={module}" for module in given.imports),
        *further,
    ]
    return subprocess.run(
        [sys.executable, "-m", "mb_trainer", name, *options, "--", *given.recipe],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, ALLOW_OOM: "1"} if given.allow_oom else None,
    )
