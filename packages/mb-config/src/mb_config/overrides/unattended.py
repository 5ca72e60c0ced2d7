"""Overrides of a run that a program starts, to compare or to measure it."""

from __future__ import annotations

from pathlib import Path


def unattended_overrides(*, checkpoints: Path | None) -> tuple[str, ...]:
    """Return overrides with which a run depends on no other run, writes to no tracker and is not cut short.

    Args:
        checkpoints: Folder of the run's checkpoints, from which it also resumes; None: it saves and loads none.
    """
    folder = "null" if checkpoints is None else str(checkpoints)
    return (
        "train.exit_duration_in_mins=null",
        "train.exit_interval=null",
        f"checkpoint.save={folder}",
        f"checkpoint.load={folder}",
        "checkpoint.save_interval=null",
        "checkpoint.ckpt_step=null",
        "logger.tensorboard_dir=null",
        "logger.save_config_filepath=null",
        "logger.wandb_project=null",
        "logger.mlflow_experiment=null",
        "logger.comet_project=null",
    )
