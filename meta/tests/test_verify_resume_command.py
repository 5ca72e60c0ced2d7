"""`mb verify-resume`: its options and starts."""

import pytest
from typer.testing import CliRunner

from mb_trainer.cli.app import app
from mb_trainer.commands.train import recording_callbacks
from mb_trainer.commands.verify_resume import start_command, start_overrides
from mb_verify import RunStart


@pytest.mark.parametrize(
    ("options", "printed"),
    [
        (["--steps", "8", "--cut", "8"], "leaves nothing to resume"),
        (["--steps", "8", "--cut", "4", "--resume-nproc", "1,2"], "leaves nothing to resume"),
        (["--resume-nproc", "none"], "must be a number above 0"),
        (["--kill", "--resume-nproc", "1"], "cannot be combined"),
        (["train.no_such_field=1"], "no_such_field"),
    ],
)
def test_impossible_requests_are_rejected(options, printed):
    ended = CliRunner().invoke(app, ["verify-resume", *options])
    assert ended.exit_code == 2
    assert printed in " ".join(ended.output.replace("│", " ").split())


@pytest.mark.parametrize(
    ("options", "printed"),
    [
        (["--faults", "fire"], "fire unknown. Choose from kill"),
        (["--steps", "1"], "--steps"),
        (["train.no_such_field=1"], "no_such_field"),
    ],
)
def test_impossible_drills_are_rejected(options, printed):
    ended = CliRunner().invoke(app, ["drill", *options])
    assert ended.exit_code == 2
    assert printed in " ".join(ended.output.replace("│", " ").split())


def test_a_folder_that_is_not_empty_is_rejected(tmp_path):
    (tmp_path / "something").touch()
    ended = CliRunner().invoke(app, ["verify-resume", "--out", str(tmp_path)])
    assert (ended.exit_code, "is not empty" in ended.output) == (1, True)


def test_a_start_has_its_own_end_and_writes_no_trackers(tmp_path):
    start = RunStart(run=tmp_path, record=tmp_path, number=0, processes=1, leave_every=3)
    overrides = start_overrides(start)
    assert {"train.exit_interval=3", "checkpoint.save_interval=null", "logger.wandb_project=null"} <= {
        *overrides
    }


def test_a_start_is_a_plain_training_command(tmp_path):
    start = RunStart(run=tmp_path, record=tmp_path, number=0, processes=2)
    command = start_command(start, ["gpt_tiny", "train.train_iters=9"], files=[tmp_path / "more.yaml"])
    assert command[1:8] == [
        *("-m", "mb_trainer", "pretrain", "--nproc=2"),
        *(f"--config={tmp_path / 'more.yaml'}", f"--out={tmp_path}", "--"),
    ]
    assert command[8:10] == ["gpt_tiny", "train.train_iters=9"]
    assert command[10:] == [*start_overrides(start)]


def test_a_recording_has_the_conditions_of_the_processor(tmp_path):
    assert recording_callbacks({}) == []
    (recorder,) = recording_callbacks({"MB_VERIFY_RECORD": str(tmp_path)})
    assert {
        "device",
        "megatron-core",
        "numpy",
        "instructions",
        "threads received",
    } <= recorder._conditions().keys()
