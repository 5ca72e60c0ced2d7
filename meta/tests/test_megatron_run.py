"""Taking over a run of Megatron-LM: what is refused, and the lines that it prints. tests/end_to_end has the run."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from mb_checkpoint.load import stored_settings
from mb_checkpoint.load.stored_settings import StoredSettings
from mb_config import ConfigReadError
from mb_trainer.cli.app import app
from mb_trainer.commands.megatron_run import take_over


def test_a_run_of_this_trainer_is_loaded_directly(tmp_path, monkeypatch):
    stored = StoredSettings(path=tmp_path, run_config=tmp_path / "run_config.yaml")
    monkeypatch.setattr(stored_settings, "find_stored_settings", lambda _section: stored)
    with pytest.raises(ConfigReadError, match=r"run_config\.yaml\. Pass checkpoint\.load="):
        take_over(tmp_path, script=None)


@pytest.mark.parametrize("option", ["--script=a.sh", "--set=A=1", "--ignore-unknown"])
def test_options_of_a_script_need_the_folder(option):
    result = CliRunner().invoke(app, ["pretrain", option])
    assert (result.exit_code, "--from-megatron-lm" in result.output) == (2, True)


@pytest.fixture
def stored(monkeypatch):
    """Return the function that sets what the checkpoint holds."""

    def store(**arguments):
        found = StoredSettings(path=Path("iter_0000006"), arguments=arguments)
        monkeypatch.setattr(stored_settings, "find_stored_settings", lambda _section: found)

    return store


ARGUMENTS = {
    "num_layers": 2,
    "hidden_size": 8,
    "num_attention_heads": 2,
    "seq_length": 8,
    "lr": 1.0,
    "swiglu": False,
}


def test_the_data_are_named_unless_the_user_sets_others(stored, tmp_path):
    stored(**ARGUMENTS, data_path=["0.3", "a", "0.7", "b"])
    found = take_over(tmp_path, script=None, out=tmp_path / "run")
    assert [line for line in found.lines if line.startswith("data:")] == ["data: a b"]
    found = take_over(tmp_path, script=None, out=tmp_path / "run", overrides=["dataset.blend=null"])
    assert not [line for line in found.lines if line.startswith("data:")]


def test_a_t5_is_not_resumed(stored, tmp_path):
    stored(**ARGUMENTS, encoder_num_layers=2, decoder_seq_length=4, data_path=["a"])
    with pytest.raises(
        ConfigReadError, match=r"is the run of a T5, which cannot be resumed\. Megatron-LM masks"
    ):
        take_over(tmp_path, script=None, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_folder_is_of_one_run_of_megatron_lm(stored, tmp_path):
    first, second, out = tmp_path / "a/checkpoints", tmp_path / "b/checkpoints", tmp_path / "out"
    stored(**ARGUMENTS, mock_data=True)
    assert take_over(first, script=None, out=out) == take_over(first, script=None, out=out)
    with pytest.raises(ConfigReadError, match=f"taken over {first}, not {second}"):
        take_over(second, script=None, out=out)


def test_a_run_that_saves_into_the_folder_of_megatron_lm_starts_again(stored, tmp_path, monkeypatch):
    stored(**ARGUMENTS, mock_data=True)
    out, overrides = tmp_path / "out", [f"checkpoint.save={tmp_path}"]
    before = take_over(tmp_path, script=None, out=out, overrides=overrides)
    assert not [line for line in before.lines if "is not changed" in line]
    saved = StoredSettings(path=tmp_path / "iter_0000007", run_config=tmp_path / "run_config.yaml")
    monkeypatch.setattr(stored_settings, "find_stored_settings", lambda _section: saved)
    assert take_over(tmp_path, script=None, out=out, overrides=overrides).arguments == before.arguments


def test_differences_between_script_and_checkpoint_are_lines(stored, tmp_path):
    script = tmp_path / "x.sh"
    flags = "--num-layers 2 --hidden-size 8 --num-attention-heads 2 --seq-length 8 --mock-data --lr 2"
    script.write_text(f"torchrun pretrain_gpt.py {flags} --save elsewhere")
    stored(**ARGUMENTS, mock_data=True, save="here", seed=7)
    found = take_over(tmp_path, script=script, out=tmp_path / "run")
    assert [line for line in found.lines if line.startswith("differs")] == [
        "differs: dataset.random_seed: not set in x.sh, 7 in the checkpoint",
        "differs: optimizer.lr: 2.0 in x.sh, 1.0 in the checkpoint",
        "differs: rng.seed: 1234 in x.sh, 7 in the checkpoint",
    ]
