"""`mb verify-resume`: the starts of both runs as `mb pretrain` commands; mb-verify records and compares them."""

import json
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from mb_checkpoint.layout import STEP_TRACKER
from mb_config.schedule import length_overrides
from mb_launch.world import require_single_process
from mb_trainer.commands.errors import reported
from mb_trainer.commands.train import worker_arguments
from mb_trainer.request_reader import read_request
from mb_verify import (
    EXIT_CODES,
    Interruption,
    RunStart,
    proof_as_data,
    proof_as_text,
    prove,
    run_start_command,
)


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
        require_single_process(os.environ, option="--nproc")
        # errors of the request are reported before anything runs
        request = read_request(arguments, files=files)
        length = length_overrides(request.config.train, interruption.steps)
        log = partial(print, file=sys.stderr, flush=True)  # results go to stdout

        def make_start(start: RunStart) -> None:
            command = start_command(start, [*arguments, *length], files=files)
            run_start_command(start, command, tracker=start.run / "checkpoints" / STEP_TRACKER, log=log)

        proof = prove(make_start, folder=out, processes=nproc or 1, interruption=interruption, log=log)
        print(
            json.dumps(proof_as_data(proof, interruption)) if as_json else proof_as_text(proof, interruption)
        )
        return EXIT_CODES[proof.conclusion]

    return reported(work)


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
    """Return the command that makes one start of a run; its environment requests the recording."""
    processes = [f"--nproc={start.processes}"] if start.processes > 1 else []
    given = worker_arguments([*arguments, *start_overrides(start)], files, start.run, False)
    return [sys.executable, "-m", "mb_trainer", "pretrain", *processes, *given]
