"""Run that has made all its steps: verification of its last checkpoint, and its outcome. No torch until then."""

from pathlib import Path

import mb_checkpoint
from mb_checkpoint.trainer_api import complete_message
from mb_loop import TrainOutcome
from mb_metrics.trainer_api import RankConsole
from mb_trainer.run.settle import Job


def outcome_if_complete(job: Job, console: RankConsole) -> TrainOutcome | None:
    """Return the outcome of a complete run after verifying its last checkpoint; None if that is damaged or missing.

    For a single process. Imports torch, and raises the errors of loading a checkpoint.
    """
    with console.progress("verifying the last checkpoint", 1) as bar:
        chosen = mb_checkpoint.verify_last_checkpoint(
            job.config.checkpoint,
            train_iters=job.config.train.train_iters or 0,
            progress=lambda done, total: bar.update(done, total=total),
        )
    return None if chosen is None else report_complete(job, chosen.path, console)


def report_complete(job: Job, last: Path, console: RankConsole) -> TrainOutcome:
    """Print that all steps are done, with the checkpoint of the last one, and return the outcome."""
    steps = job.config.train.train_iters or 0
    message, advice = complete_message(job.config.checkpoint, last, run=job.folder.path, train_iters=steps)
    console.print(f"{message} {advice}")
    return TrainOutcome(reason="finished", message=message, step=steps, exit_code=0, saved=False)
