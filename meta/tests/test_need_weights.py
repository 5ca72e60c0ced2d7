"""What `mb finetune` asks for before the rules are applied."""

import pytest

from mb_trainer.commands.train import need_weights
from mb_trainer.reading import read_request
from mb_trainer.run_folder import NoCheckpointError


def asked(*words):
    return read_request(["gpt_tiny", *words]).config


def test_a_folder_without_a_checkpoint_is_refused_and_released_weights_are_not(tmp_path):
    (tmp_path / "progress.txt").touch()
    config = asked(f"checkpoint.pretrained_checkpoint={tmp_path}")
    with pytest.raises(
        NoCheckpointError, match=f"{tmp_path} has no checkpoint, and fine-tuning starts from one"
    ):
        need_weights(config)
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("release")
    need_weights(config)


def test_what_the_rule_says_is_not_said_twice(tmp_path):
    need_weights(asked("checkpoint.finetune=true", f"checkpoint.load={tmp_path}"))
