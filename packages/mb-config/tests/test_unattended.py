"""Overrides of a run that a program starts."""

from pathlib import Path

from mb_config.overrides.unattended import unattended_overrides


def test_a_run_with_a_folder_saves_there_and_resumes_from_there():
    overrides = unattended_overrides(checkpoints=Path("runs/a"))
    assert {"checkpoint.save=runs/a", "checkpoint.load=runs/a", "logger.wandb_project=null"} < {*overrides}


def test_a_run_without_a_folder_saves_nothing():
    assert {"checkpoint.save=null", "checkpoint.load=null"} < {*unattended_overrides(checkpoints=None)}
