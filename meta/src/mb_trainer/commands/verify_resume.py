"""`mb verify-resume` and `mb drill`: starts of runs as `mb pretrain` commands; mb-verify records and compares them."""

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from mb_checkpoint.trainer_api import RUN_CHECKPOINTS, STEP_TRACKER
from mb_config.trainer_api import length_overrides, unattended_overrides
from mb_launch.trainer_api import require_single_process
from mb_trainer.commands.train import pretrain_command
from mb_trainer.requests import read_request
from mb_verify import RunStart
from mb_verify.trainer_api import DrillOptions, ProofOptions


def start_runs(
    arguments: Sequence[str], options: DrillOptions | ProofOptions, *, files: Sequence[Path]
) -> int:
    """Make the runs of a drill or a proof, print the result, and return its exit code."""
    require_single_process(os.environ, option="--nproc")
    length = length_overrides(read_request(arguments, files=files).config.train, options.steps)
    make_command = partial(start_command, arguments=[*arguments, *length], files=files)
    return options.run(make_command, tracker=Path(RUN_CHECKPOINTS) / STEP_TRACKER)


def start_overrides(start: RunStart) -> tuple[str, ...]:
    """Return the overrides of a start: its folder and its end, and no trackers on the network."""
    return (
        *unattended_overrides(checkpoints=start.run / "checkpoints"),
        f"checkpoint.save_interval={start.save_every or 'null'}",
        f"train.exit_interval={start.leave_every or 'null'}",
    )


def start_command(start: RunStart, arguments: Sequence[str], *, files: Sequence[Path]) -> list[str]:
    """Return the command that makes one start of a run; its environment requests the recording."""
    settings = [*arguments, *start_overrides(start)]
    return pretrain_command(settings, start.run, files=files, processes=start.processes)
