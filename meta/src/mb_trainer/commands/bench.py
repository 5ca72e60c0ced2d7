"""`mb bench`: the command of a measured run."""

from collections.abc import Sequence
from pathlib import Path

from mb_config.trainer_api import unattended_overrides
from mb_metrics.trainer_api import BenchRequest
from mb_trainer.commands.train import pretrain_command


def bench_command(arguments: Sequence[str], run: Path, request: BenchRequest) -> list[str]:
    """Return the command that trains for the steps of a request, without validation and checkpoints."""
    length = (f"train.train_iters={request.length}", "train.train_samples=null", "train.num_epochs=null")
    given = [*arguments, *unattended_overrides(checkpoints=None), *length, "validation.eval_interval=null"]
    return [*pretrain_command((), run)[:-1], *given]  # without --: options of the user follow
