"""Requests of commands that use some sections only, and the folder of a run."""

import os

import pytest
import typer

from mb_config import ConfigError
from mb_config.cli.examination import CommandInput
from mb_config.preflight.facts import ALLOW_OOM
from mb_trainer.cli.options import read_run_folder, set_allow_oom
from mb_trainer.requests import examine_sections

INVALID = CommandInput(arguments=["gpt_tiny", "scheduler.start_weight_decay=-1.0"])


def test_problems_of_other_sections_are_ignored():
    assert examine_sections(INVALID, sections=("train",)).config.train.global_batch_size == 8


def test_problems_of_the_used_sections_are_rejected():
    with pytest.raises(ConfigError, match=r"scheduler\.start_weight_decay"):
        examine_sections(INVALID, sections=("scheduler",))


@pytest.mark.parametrize("folder", ["", "s3://bucket/run"])
def test_a_run_folder_is_a_local_path(folder):
    with pytest.raises(typer.BadParameter, match=r"is empty|is a URL"):
        read_run_folder(folder)


def test_the_option_reaches_the_processes_that_are_started(monkeypatch):
    monkeypatch.delenv(ALLOW_OOM, raising=False)
    assert (set_allow_oom(False), ALLOW_OOM in os.environ) == (False, False)
    assert (set_allow_oom(True), os.environ[ALLOW_OOM]) == (True, "1")
    monkeypatch.delenv(ALLOW_OOM)
