"""`checkpoint.ckpt_step`: applies until the run that started there has saved a newer checkpoint."""

import json
import sys

import pytest

from mb_checkpoint import CheckpointConfig
from mb_trainer.commands.train import typed
from mb_trainer.named_step import beginning, hold_once

BEGUN = {"event": "resume", "step": 6, "ckpt_step": 6, "load": "run"}
SAVED = {"event": "save", "step": 9}


def left(tmp_path, *events, cut="", **asked):
    """Return the effective `ckpt_step` after these events, and the folder that the run loads from."""
    file = tmp_path / "events.jsonl"
    file.write_text("".join(json.dumps(each) + "\n" for each in events) + cut)
    section = CheckpointConfig(**{"ckpt_step": 6, "load": "run", "save": "run"} | asked)
    note = hold_once(section, events=file)
    assert (note is None) == (section.ckpt_step is not None)
    return section.ckpt_step, section.load


@pytest.mark.parametrize(
    ("events", "step"),
    [
        ((), 6),
        ((SAVED, {"event": "stop", "step": 9}), 6),  # saved before step 6 was requested
        ((BEGUN,), 6),
        ((BEGUN, {"event": "save", "step": 6}), 6),
        ((BEGUN, SAVED), None),
        ((BEGUN, SAVED, {"event": "resume", "step": 9}, {"event": "stop", "step": 9}), None),
        ((BEGUN, SAVED, BEGUN | {"ckpt_step": 3, "step": 3}), 6),  # the run has started at another step since
        ((BEGUN, SAVED, BEGUN), 6),
        ((BEGUN | {"load": "other"}, SAVED), 6),
    ],
)
def test_the_step_holds_until_something_newer_is_saved(tmp_path, events, step):
    assert left(tmp_path, *events, cut='{"event": "sa') == (step, "run")


def test_what_was_saved_is_gone_on_from_although_the_step_lies_elsewhere(tmp_path):
    begun = BEGUN | {"load": "base"}
    assert left(tmp_path, begun, SAVED, load="base") == (None, "run")
    assert left(tmp_path, begun, load="base") == (6, "base")


def test_one_place_may_be_written_in_several_ways(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for load in ("./base/", str(tmp_path / "base"), "other/../base"):
        assert left(tmp_path, BEGUN | {"load": "base"}, SAVED, load=load) == (None, "run")
        assert beginning(CheckpointConfig(ckpt_step=6, load=load))["load"] == str(tmp_path / "base")


def test_weights_to_fine_tune_stay_where_they_are(tmp_path):
    assert left(tmp_path, BEGUN, SAVED, finetune=True) == (6, "run")
    section = CheckpointConfig(load="run", ckpt_step=6)
    assert hold_once(section, events=tmp_path / "none") is None


def test_the_command_that_goes_on_is_the_whole_one(monkeypatch):
    """The step that it names applies until a newer checkpoint is saved."""
    words = ["pretrain", "checkpoint.ckpt_step=6", "checkpoint.load=my base"]
    monkeypatch.setattr(sys, "argv", ["/bin/mb", *words])
    assert typed({}) == "mb pretrain checkpoint.ckpt_step=6 'checkpoint.load=my base'"
    assert typed({"UV_RUN_RECURSION_DEPTH": "1"}).startswith("uv run mb pretrain")


def test_the_resume_command_shows_no_secret(monkeypatch):
    asked = ["mb", "pretrain", "env_vars.OPENAI_API_KEY=c0ffee in clear", "optimizer.lr=1e-3"]
    monkeypatch.setattr("sys.argv", asked)
    assert typed({}) == "mb pretrain 'env_vars.OPENAI_API_KEY=<masked>' optimizer.lr=1e-3"
