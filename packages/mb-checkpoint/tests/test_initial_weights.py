import pytest

from mb_checkpoint import CheckpointConfig
from mb_checkpoint.errors import CheckpointRulesError
from mb_checkpoint.load.initial_weights import require_weights


def problem(**fields):
    try:
        require_weights(CheckpointConfig(**fields))
    except CheckpointRulesError as error:
        return str(error)
    return None


def test_weights_must_be_named():
    assert problem().startswith(
        "[V244] checkpoint.pretrained_checkpoint: is not set, because fine-tuning starts "
    )


def test_a_folder_needs_a_checkpoint_and_released_weights_are_one(tmp_path):
    (tmp_path / "progress.txt").touch()
    assert f"{tmp_path} has no checkpoint" in problem(pretrained_checkpoint=str(tmp_path))
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("release")
    assert problem(pretrained_checkpoint=str(tmp_path)) is None


def test_a_folder_of_a_run_is_searched_for_its_checkpoints_and_load_counts_as_weights(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "latest_checkpointed_iteration.txt").write_text("release")
    assert problem(load=str(tmp_path)) is None


@pytest.mark.parametrize("fields", [{"finetune": True}, {"load": "s3://bucket/run"}], ids=["V244", "URL"])
def test_a_problem_that_a_rule_reports_is_not_reported_twice(fields):
    assert problem(**fields) is None
