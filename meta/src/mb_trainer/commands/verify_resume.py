"""`mb verify-resume`: the starts of both runs as `mb` commands, recorded; mb-verify compares them."""

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from mb_checkpoint.layout import STEP_TRACKER
from mb_config import TrainingConfig
from mb_host.reproducibility import read_arithmetic
from mb_launch import read_world, requested_port
from mb_loop import TrainOutcome
from mb_trainer.commands.errors import reported
from mb_trainer.commands.train import launch, refuse_inside_a_launcher
from mb_trainer.errors import OutputExistsError
from mb_trainer.request_reader import read_request
from mb_trainer.trainer import pretrain
from mb_verify import (
    EXIT_CODES,
    Interruption,
    KillAfterCheckpoint,
    Recorder,
    RunStart,
    proof_as_data,
    proof_as_text,
    prove,
    run_start_command,
)
from mb_verify.torch_state import conditions


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingOptions:
    """Options of a recorded run in addition to those of `mb pretrain`."""

    folder: Path
    start: int
    kill_after: int | None = None


def verify(
    arguments: Sequence[str],
    *,
    files: Sequence[Path],
    out: Path | None,
    nproc: int | None,
    interruption: Interruption,
    as_json: bool,
) -> int:
    """Make both runs, compare them, print the result, and return its exit code (`EXIT_CODES`)."""

    def work() -> int:
        refuse_inside_a_launcher(os.environ)
        # errors of the request are reported before anything runs
        request = read_request(arguments, files=files)
        length = length_overrides(request.config.train, interruption.steps)

        def make_start(start: RunStart) -> None:
            command = start_command(start, [*arguments, *length], files=files)
            run_start_command(start, command, saved_step=lambda: saved_step(start.run), log=log_progress)

        with ExitStack() as stack:
            folder = out or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mb-verify-")))
            if out is not None and out.exists() and any(out.iterdir()):
                raise OutputExistsError(
                    f"{out}: is not empty, and both runs must start afresh. Give another --out."
                )
            processes = nproc or 1
            proof = prove(
                make_start, folder=folder, processes=processes, interruption=interruption, log=log_progress
            )
        text = proof_as_text(proof, interruption)
        print(json.dumps(proof_as_data(proof, interruption)) if as_json else text)
        return EXIT_CODES[proof.conclusion]

    return reported(work)


def length_overrides(train: TrainingConfig, steps: int) -> tuple[str, ...]:
    """Return overrides that set the length of a run, in samples or in steps as the recipe counts.

    Batches that grow or change have no fixed number of samples in a step: such a run is counted in steps.
    """
    constant = train.rampup_batch_size is None and train.step_batch_size_schedule is None
    if train.train_samples is not None and train.global_batch_size is not None and constant:
        return (f"train.train_samples={steps * train.global_batch_size}",)
    counted = {"num_epochs": train.num_epochs, "train_samples": train.train_samples}
    others = (f"train.{name}=null" for name, value in counted.items() if value is not None)
    return (f"train.train_iters={steps}", *others)


def start_overrides(start: RunStart) -> tuple[str, ...]:
    """Return the overrides of a start: its folder and its end, and no trackers on the network."""
    checkpoints = start.run / "checkpoints"
    return (
        "train.exit_duration_in_mins=null",
        f"checkpoint.save={checkpoints}",
        f"checkpoint.load={checkpoints}",
        "checkpoint.ckpt_step=null",
        "logger.tensorboard_dir=null",
        "logger.save_config_filepath=null",
        "logger.wandb_project=null",
        "logger.mlflow_experiment=null",
        "logger.comet_project=null",
        f"checkpoint.save_interval={start.save_every or 'null'}",
        f"train.exit_interval={start.leave_every or 'null'}",
    )


def start_command(start: RunStart, arguments: Sequence[str], *, files: Sequence[Path]) -> list[str]:
    """Return the command that makes one start of a run, recorded."""
    recording = RecordingOptions(folder=start.record, start=start.number, kill_after=start.kill_after)
    options = recorded_run_options(start.run, files, recording)
    options += [f"--nproc={start.processes}"] if start.processes > 1 else []
    recorded = ["recorded-run", *options, "--", *arguments, *start_overrides(start)]
    return [sys.executable, "-m", "mb_trainer", *recorded]


def saved_step(run: Path) -> int | None:
    """Return the step of the newest complete checkpoint according to the tracker; None: there is none."""
    tracker = run / "checkpoints" / STEP_TRACKER
    return int(tracker.read_text()) if tracker.is_file() else None


def log_progress(text: str) -> None:
    """Print progress to stderr; results go to stdout."""
    print(text, file=sys.stderr, flush=True)


def recorded_run_options(out: Path, files: Sequence[Path], recording: RecordingOptions) -> list[str]:
    """Return the options of the hidden command `mb recorded-run`."""
    options = [f"--out={out}", f"--record={recording.folder}", f"--start={recording.start}"]
    options += [f"--config={file}" for file in files]
    return options + ([] if recording.kill_after is None else [f"--kill-after={recording.kill_after}"])


def recorded_run(
    arguments: Sequence[str],
    *,
    files: Sequence[Path],
    out: Path,
    nproc: int | None,
    recording: RecordingOptions,
) -> int:
    """Do what `mb pretrain` does, with a recorder; the command is hidden."""

    def work() -> int:
        if nproc is not None and nproc > 1:
            options = recorded_run_options(out, files, recording)
            rank_arguments = ["recorded-run", *options, "--", *arguments]
            return launch(rank_arguments, processes=nproc, port=requested_port(os.environ))
        request = read_request(arguments, files=files)
        world = read_world(os.environ)
        callbacks: list[object] = [recorder(recording.folder, rank=world.rank, start=recording.start)]
        if recording.kill_after is not None:
            tracker = out / "checkpoints" / STEP_TRACKER
            kill = world.is_logging_rank
            callbacks.append(KillAfterCheckpoint(recording.kill_after, tracker=tracker, kill=kill))
        outcome: TrainOutcome = pretrain(
            request.config,
            name=request.name,
            out=out,
            provenance=request.provenance,
            callbacks=callbacks,
        )
        return outcome.exit_code

    return reported(work)


def recorder(folder: Path, *, rank: int, start: int) -> Recorder:
    """Return the recorder of a rank, which also writes down threads, processor and versions."""

    def all_conditions() -> dict[str, str]:
        versions = {name: version(name) for name in ("megatron-core", "numpy")}
        return {**conditions(), **read_arithmetic().as_text(), **versions}

    return Recorder(folder, rank=rank, start=start, conditions=all_conditions)
