"""Commands that repeat runs and compare them bit for bit: `mb verify-resume`, `drill` and `replay`."""

from pathlib import Path
from typing import Annotated

import typer

from mb_schema.commands import common_options
from mb_trainer.cli.options import ConfigFiles, Recipe, command, exit_with
from mb_verify.trainer_api import DrillOptions, ProofOptions, ReplayOptions

proof = typer.Typer()


@proof.command(
    "verify-resume",
    epilog="Example: mb verify-resume gpt_tiny --steps 20 --cut 7 --nproc 2 model.tensor_model_parallel_size=2",
)
@common_options
def verify_resume(options: ProofOptions, recipe: Recipe = None, config: ConfigFiles = None) -> None:
    """Prove that a resumed run equals an uninterrupted one: run a recipe with and without an interruption.

    Compared for every step on every rank: the sequences that were read, counters, learning rate, all random
    streams, losses, gradient norms, optimizer state and parameters. The first difference is named with its step,
    rank and both values. Nothing is written but a temporary folder, or --out. Every tensor is hashed in every
    step: choose a model that is small for its layout. On GPUs ask for model.deterministic_mode=true.

    Where the two differ, a second uninterrupted run follows, and the state that was loaded, threads, processor and
    versions are printed: exit code 3 then means that runs differ on this machine without any resume.

    Exit code 0: equal; 1: the resume is not exact, or a run failed; 3: the machine is not repeatable.
    """
    exit_with(lambda: command("verify_resume").start_runs(recipe or [], options, files=config or []))


@proof.command(epilog="Example: mb drill gpt_tiny --nproc 2 --steps 12 --save-every 3 --faults kill,nan")
@common_options
def drill(options: DrillOptions, recipe: Recipe = None, config: ConfigFiles = None) -> None:
    """Run a recipe under injected faults, start it again after each, and compare it with the undisturbed run.

    Each fault comes in a step, at a moment and on a rank that --seed draws. Reported for each: steps and seconds
    lost, and whether losses, gradient norms and learning rates equal those of the undisturbed run bit for bit.

    Exit code 0: the run recovered from all; 1: not, or a run failed; 3: the machine is not repeatable.
    """
    exit_with(lambda: command("verify_resume").start_runs(recipe or [], options, files=config or []))


@proof.command(epilog="Example: mb replay runs/gpt_tiny --step 210")
@common_options
def replay(
    run: Annotated[Path, typer.Argument(help="A run folder.", show_default=False)],
    options: ReplayOptions,
    overrides: Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE", show_default=False)] = None,
) -> None:
    """Make a step of a run again, bit for bit, and print the norms of its weights, gradients and outputs by layer.

    It is made from the newest checkpoint before it, in a folder of its own: the run is only read. What was
    computed is compared with the metrics of the run. On GPUs equal bits need model.deterministic_mode=true in the
    run.

    Exit code 0: equal to the run; 1: different, or failed.
    """
    exit_with(lambda: command("replay").replay(run, overrides or [], options))
