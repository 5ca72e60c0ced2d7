"""Run that has made all its steps: verification of its last checkpoint, and its outcome. No torch until then."""

from pathlib import Path

import mb_checkpoint.trainer_api
from mb_checkpoint.trainer_api import complete_message
from mb_loop import TrainOutcome
from mb_metrics import read_event_rows
from mb_metrics.trainer_api import RankConsole
from mb_trainer.run.settle import Job

EVALUATE = "the same command with validation.skip_train=true prints the validation and test losses"
"""How to compute the losses of an evaluation after training that did not end."""


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
    """Print that all steps are done, with the checkpoint of the last one, and return the outcome. Collective.

    A copy to `checkpoint.storage` that a killed process has not ended is made first; errors as `complete_storage`.
    """
    steps = job.config.train.train_iters or 0
    message, advice = complete_message(job.config.checkpoint, last, run=job.folder.path, train_iters=steps)
    # By its module, which imports torch only here: bad input is reported without torch.
    mb_checkpoint.trainer_api.complete_storage(job.config.checkpoint, last, log=console.print)
    console.print(f"{message} {advice}")
    missing = missing_evaluation(job)
    if missing is not None:
        console.print(missing)
    return TrainOutcome(reason="finished", message=message, step=steps, exit_code=0, saved=False)


def missing_evaluation(job: Job) -> str | None:
    """Return a message if the last process of a run was killed, perhaps in its evaluation after training; else None."""
    ends = [row["event"] for row in read_event_rows(job.folder.events) if "event" in row][-1:]
    # A run writes "stop" after the evaluation that follows its last step.
    if ends in ([], ["stop"]) or job.config.validation.eval_iters == 0:
        return None
    return f"its process was killed before it had ended, and the evaluation after training may be missing: {EVALUATE}"
