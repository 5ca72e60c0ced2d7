"""Command line for training: `mb pretrain`, `finetune`, `verify-resume`."""

from pathlib import Path
from typing import Annotated

import typer

from mb_checkpoint.cli import Trust
from mb_trainer.cli_options import (
    ConfigFiles,
    Json,
    NoNumaBinding,
    Out,
    Processes,
    Recipe,
    ResumeWithChanges,
    command,
)

train = typer.Typer()


@train.command(epilog="Example: mb pretrain gpt_tiny train.train_iters=50 optimizer.lr=1e-3 --out runs/try")
def pretrain(
    recipe: Recipe = None,
    config: ConfigFiles = None,
    out: Out = None,
    nproc: Processes = None,
    resume_with_changes: ResumeWithChanges = False,
    trust: Trust = None,
    no_numa_binding: NoNumaBinding = False,
) -> None:
    """Train a model from scratch, or resume where the run folder's newest checkpoint stopped.

    With no argument it trains the recipe gpt_tiny: a GPT of five million parameters on the source files of this
    Python's standard library, on the CPU or one GPU.

    The run folder receives run_config.yaml, metrics.jsonl (a JSON object per step), events.jsonl, tensorboard/,
    checkpoints/ and log.txt. Running the same command again resumes, or reports that the run is complete.

    Overrides are dotted paths: train.train_iters=50, model.num_layers=2, optimizer.lr=1e-3; the run_config.yaml of any
    run lists all fields with their values. Low to high: class
    default, recipe, --config files in order, command line. Ctrl-C saves a checkpoint and stops; a second one stops
    at once.

    Several processes: mb pretrain --nproc 2 model.tensor_model_parallel_size=2. On several machines start the same
    command with torchrun (torchrun ... -m mb_trainer pretrain ...) or srun, without --nproc.
    """
    options = {"files": config or [], "out": out, "nproc": nproc, "resume_with_changes": resume_with_changes}
    options |= {"trust": trust or [], "numa_binding": not no_numa_binding}
    raise typer.Exit(command("train").pretrain(list(recipe or []), **options))


@train.command(epilog="Example: mb finetune lora_tiny peft.dim=16 --out runs/lora")
def finetune(
    recipe: Recipe = None,
    config: ConfigFiles = None,
    out: Out = None,
    nproc: Processes = None,
    resume_with_changes: ResumeWithChanges = False,
    trust: Trust = None,
    no_numa_binding: NoNumaBinding = False,
) -> None:
    """Train on from the weights in checkpoint.pretrained_checkpoint, all of them or adapters alone.

    peft=lora, peft=canonical_lora or peft=dora trains adapters (peft.dim, peft.alpha, peft.dropout,
    peft.target_modules); checkpoints then hold the adapters alone. Everything else is as with mb pretrain.

    The recipe lora_tiny starts from what mb pretrain gpt_tiny made in runs/gpt_tiny.
    """
    options = {"files": config or [], "out": out, "nproc": nproc, "resume_with_changes": resume_with_changes}
    options |= {"trust": trust or [], "numa_binding": not no_numa_binding}
    raise typer.Exit(command("train").pretrain(list(recipe or []), **options, command="finetune"))


@train.command(
    "verify-resume",
    epilog="Example: mb verify-resume gpt_tiny --steps 20 --cut 7 --nproc 2 model.tensor_model_parallel_size=2",
)
def verify_resume(  # noqa: PLR0913 - options of a command
    recipe: Recipe = None,
    config: ConfigFiles = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIR",
            help="Keep both runs and what they recorded here.",
            show_default=False,
        ),
    ] = None,
    nproc: Processes = None,
    steps: Annotated[int, typer.Option(min=2, metavar="N", help="Steps of the run.")] = 20,
    cut: Annotated[int, typer.Option(min=1, metavar="K", help="Step after which it is interrupted.")] = 7,
    kill: Annotated[
        bool, typer.Option("--kill", help="Kill it (SIGKILL) some steps after the checkpoint of step K.")
    ] = False,
    resume_nproc: Annotated[
        str | None,
        typer.Option(
            "--resume-nproc",
            metavar="N[,N...]",
            help="Resume with so many processes; several: interrupted at each multiple of K. Compares what was read.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Prove that a resumed run equals an uninterrupted one: run a recipe straight and cut, and compare every bit.

    Compared for every step on every rank: the sequences that were read, counters, learning rate, all random streams,
    losses, gradient norms, optimizer state and parameters. The first difference is named with its step, rank and both
    values. Nothing is written but a temporary folder, or --out. Every tensor is hashed in every step: choose a model
    that is small for its layout. On GPUs ask for model.deterministic_mode=true.

    Where the two differ, a second straight run follows, and the state that was loaded, threads, processor and versions
    are printed: exit code 3 then means that runs differ on this machine without any resume.

    Exit code 0: equal; 1: the resume is not exact, or a run failed; 3: the machine is not repeatable.
    """
    starts = (resume_nproc or "").split(",") if resume_nproc is not None else []
    if not all(number.isdecimal() and int(number) > 0 for number in starts):
        raise typer.BadParameter(
            "must be a number above 0, or several with commas", param_hint="--resume-nproc"
        )
    if cut * max(1, len(starts)) >= steps:
        raise typer.BadParameter(
            f"{cut} leaves nothing to resume in {steps} steps; the last interruption must come before the end",
            param_hint="--cut",
        )
    if kill and starts:
        raise typer.BadParameter("cannot be combined with --resume-nproc", param_hint="--kill")
    work = command("verify_resume")
    interruption = work.Interruption(steps=steps, step=cut, kill=kill, resumed_by=tuple(map(int, starts)))
    options = {"files": config or [], "out": out, "nproc": nproc, "as_json": as_json}
    raise typer.Exit(work.verify(list(recipe or []), interruption=interruption, **options))


@train.command("recorded-run", hidden=True)
def recorded_run(
    out: Annotated[Path, typer.Option()],
    record: Annotated[Path, typer.Option()],
    start: Annotated[int, typer.Option()],
    recipe: Recipe = None,
    config: ConfigFiles = None,
    nproc: Processes = None,
    kill_after: Annotated[int | None, typer.Option()] = None,
) -> None:
    """Train as `mb pretrain` does, and record; `mb verify-resume` starts this."""
    work = command("verify_resume")
    recording = work.RecordingOptions(folder=record, start=start, kill_after=kill_after)
    options = {"files": config or [], "out": out, "nproc": nproc, "recording": recording}
    raise typer.Exit(work.recorded_run(list(recipe or []), **options))
