"""Taking over a run of Megatron-LM: what is refused, and the lines on differences. tests/end_to_end has the run."""

import pytest
from typer.testing import CliRunner

from mb_checkpoint.load import stored_settings
from mb_checkpoint.load.stored_settings import StoredSettings
from mb_config import ConfigReadError
from mb_config.megatron_lm.script import read_words
from mb_trainer.cli.app import app
from mb_trainer.commands.megatron_run import differences, take_over


def test_a_run_of_this_trainer_is_loaded_directly(tmp_path, monkeypatch):
    stored = StoredSettings(path=tmp_path, run_config=tmp_path / "run_config.yaml")
    monkeypatch.setattr(stored_settings, "find_stored_settings", lambda _section: stored)
    with pytest.raises(ConfigReadError, match=r"run_config\.yaml\. Pass checkpoint\.load="):
        take_over(tmp_path, script=None)


@pytest.mark.parametrize("option", ["--script=a.sh", "--set=A=1", "--ignore-unknown"])
def test_options_of_a_script_need_the_folder(option):
    result = CliRunner().invoke(app, ["pretrain", option])
    assert (result.exit_code, "--from-megatron-lm" in result.output) == (2, True)


def test_flags_that_differ_from_the_checkpoint_are_listed():
    words = read_words("torchrun pretrain_gpt.py --lr 2 --seed 1 --data-path a b --my-flag 3 --bf16")
    stored = {"lr": 1.0, "seed": 1, "data_path": ["a", "c"], "bf16": True}
    assert [*differences(words, stored, "x.sh")] == [
        "differs: --lr: 2.0 in x.sh, 1.0 in the checkpoint",
        "differs: --data-path: a b in x.sh, a c in the checkpoint",
    ]
