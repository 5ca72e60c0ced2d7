"""Weights that `mb finetune` requires before the rules are applied."""

import pytest
from typer.testing import CliRunner

from mb_config import ConfigError
from mb_trainer.cli import app
from mb_trainer.commands.train import need_weights
from mb_trainer.reading import read_request


def asked(*words):
    return read_request(["gpt_tiny", *words]).config


def test_a_folder_without_a_checkpoint_is_refused_and_released_weights_are_not(tmp_path):
    (tmp_path / "progress.txt").touch()
    config = asked(f"checkpoint.pretrained_checkpoint={tmp_path}")
    with pytest.raises(
        ConfigError, match=f"{tmp_path} has no checkpoint.*, because fine-tuning starts from one"
    ):
        need_weights(config)
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("release")
    need_weights(config)


def test_what_the_rule_says_is_not_said_twice(tmp_path):
    need_weights(asked("checkpoint.finetune=true", f"checkpoint.load={tmp_path}"))


def test_without_weights_it_is_refused_by_a_rule(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for words, says in (
        ([], "is not set"),
        (["checkpoint.pretrained_checkpoint=nowhere"], "no such folder: nowhere"),
    ):
        done = CliRunner().invoke(app, ["finetune", "gpt_tiny", *words])
        assert (
            done.exit_code,
            done.stderr.startswith("error: [V244] checkpoint.pretrained_checkpoint: "),
        ) == (1, True)
        assert says in done.stderr
