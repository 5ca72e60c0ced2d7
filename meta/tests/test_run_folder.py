"""Run folder: the messages about its settings."""

from pathlib import Path

from mb_config.overrides.saved_settings import changed_settings_message
from mb_metrics.run.folder import RunFolder
from mb_models.training.weight_shapes import fixed_by_weights
from mb_trainer.recipes import gpt_tiny
from mb_trainer.run.run_folder import checkpoints_of_run, saved_settings


def test_other_settings_are_described_each_with_both_values(tmp_path):
    folder, config = RunFolder(tmp_path), gpt_tiny()
    config.checkpoint.save = "elsewhere"
    config.to_yaml(folder.run_config)
    config.checkpoint.save, config.train.train_iters = "here", 30
    changed = saved_settings(folder).differences(config)
    assert changed == {"train.train_iters": (300, 30)}
    assert "train.train_iters: 300 there, 30 now" in changed_settings_message(folder.path, changed)
    assert "--resume-with-changes" in changed_settings_message(folder.path, changed)


def test_the_checkpoints_of_a_run_may_be_elsewhere(tmp_path):
    folder, config = RunFolder(tmp_path), gpt_tiny()
    config.checkpoint.save = "elsewhere"
    config.to_yaml(folder.run_config)
    assert checkpoints_of_run(tmp_path) == tmp_path  # a checkpoint has such a file, too
    folder.events.touch()
    assert checkpoints_of_run(tmp_path) == Path("elsewhere")
    folder.checkpoints.mkdir()
    assert checkpoints_of_run(tmp_path) == tmp_path


def test_settings_that_stored_weights_depend_on_are_not_recommended_to_change(tmp_path):
    changed = {"model.hidden_size": (64, 128), "train.train_iters": (20, 30)}
    text = changed_settings_message(tmp_path, changed, fixed=fixed_by_weights(changed))
    assert "model.hidden_size cannot be changed here" in text
    assert "--resume-with-changes" not in text
