"""Settings that an earlier run has written."""

import pytest

from mb_config import (
    ConfigContainer,
    OptimizerConfig,
    SavedSettings,
    SchedulerConfig,
    TrainingConfig,
    difference_lines,
    settings_differences,
)
from mb_config.overrides.saved_settings import SavedSettingsError, changed_settings_message


@pytest.fixture
def config():
    """Return a configuration without sections of other packages."""
    return ConfigContainer(
        model=None,
        train=TrainingConfig(),
        optimizer=OptimizerConfig(),
        scheduler=SchedulerConfig(),
        dataset=None,
        logger=None,
        tokenizer=None,
        checkpoint=None,
    )


def test_without_a_file_there_are_no_differences(tmp_path, config):
    saved = SavedSettings(file=tmp_path / "run.yaml")
    assert (saved.read(), saved.section("train"), saved.differences(config)) == (None, {}, {})


@pytest.mark.parametrize("damaged", [b"train: [", b"", b"just words", b"\xff\xfe\x00"])
def test_a_damaged_file_is_one_error_with_advice(tmp_path, config, damaged):
    saved = SavedSettings(file=tmp_path / "run.yaml", fix="Remove it.")
    saved.file.write_bytes(damaged)
    with pytest.raises(SavedSettingsError, match=r"run.yaml: cannot be read .* compared .*Remove it\."):
        saved.differences(config)
    assert saved.section("train") == {}


def test_differences_have_both_values_and_leave_out_ignored_fields(tmp_path, config):
    saved = SavedSettings(file=tmp_path / "run.yaml", ignored={"train.global_batch_size"})
    config.to_yaml(saved.file)
    assert saved.differences(config) == {}
    config.train.train_iters, config.train.global_batch_size = 30, 8
    assert difference_lines(saved.differences(config)) == "  train.train_iters: None there, 30 now"
    assert saved.section("train")["train_iters"] is None


def test_settings_that_are_not_on_this_machine_are_compared_by_their_content(tmp_path, config):
    config.to_yaml(tmp_path / "run.yaml")
    content = (tmp_path / "run.yaml").read_text()
    saved = SavedSettings(file=tmp_path / "elsewhere.yaml", content=content)
    config.train.train_iters = 30
    assert saved.differences(config) == {"train.train_iters": (None, 30)}
    with pytest.raises(SavedSettingsError, match=r"elsewhere.yaml: cannot be read \(it is empty\)"):
        SavedSettings(file=saved.file, content="").read()


def test_the_message_about_another_run_names_both_values_and_what_can_be_done(tmp_path):
    text = changed_settings_message(tmp_path, {"train.train_iters": (3, 4)})
    assert "train.train_iters: 3 there, 4 now" in text
    assert text.endswith("or resume with the new settings with --resume-with-changes.")


def test_a_setting_that_weights_depend_on_must_be_restored(tmp_path):
    text = changed_settings_message(tmp_path, {"model.num_layers": (3, 4)}, fixed=["model.num_layers"])
    assert "model.num_layers cannot be changed here" in text
    assert "--resume-with-changes" not in text


def test_differences_name_leaves_except_the_ignored_ones():
    saved = {"a": {"b": 1, "c": [1]}, "checkpoint": {"save": "x"}, "gone": 3}
    wanted = {"a": {"b": 2, "c": [1]}, "checkpoint": {"save": "y"}, "new": {"d": 4}}
    found = settings_differences(saved, wanted, ignored={"checkpoint.save"})
    assert found == {"a.b": (1, 2), "gone": (3, None), "new.d": (None, 4)}


def test_a_field_that_an_earlier_version_did_not_have_is_no_difference_at_its_default():
    saved = {"train": {"train_iters": 20}, "peft": None, "profiling": None}
    wanted = {
        "train": {"train_iters": 20, "new": 1, "other": 2},
        "peft": {"dim": 32},
        "profiling": {"record_shapes": False},
    }
    chosen = {"train": {"train_iters": 20, "other": 2}, "peft": {}}
    found = settings_differences(saved, wanted, chosen=chosen)
    assert found == {"train.other": (None, 2), "peft.dim": (None, 32)}
