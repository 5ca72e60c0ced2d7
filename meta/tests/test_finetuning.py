"""Checks of fine-tuning data before a launch: missing files and invalid packing."""

import json

import pytest
from typer.testing import CliRunner

from mb_data import DataPathError, TokenizerConfig
from mb_trainer.cli.app import app
from mb_trainer.recipes import RECIPES
from mb_trainer.run.data_checks import verify_data


@pytest.fixture
def config(tmp_path):
    """Return the recipe with user data."""
    config = RECIPES["sft_tiny"].build()
    config.dataset.dataset_root = str(tmp_path)
    config.tokenizer = TokenizerConfig(tokenizer_type="ByteTokenizer")
    return config


def test_files_are_looked_for_where_something_is_read_from_them(config, tmp_path):
    with pytest.raises(DataPathError, match=r"training\.jsonl does not exist.*Correct the path\."):
        verify_data(config)
    (tmp_path / "training.jsonl").touch()
    with pytest.raises(DataPathError, match=r"validation\.jsonl does not exist.*do_validation=false"):
        verify_data(config)
    config.dataset.do_validation = False
    with pytest.raises(DataPathError, match=r"test\.jsonl does not exist.*do_test=false"):
        verify_data(config)
    config.validation.eval_iters = 0
    verify_data(config)
    config.dataset.dataset_root = None
    verify_data(config)  # synthetic data need no files


FROM_NOTHING = ["checkpoint.pretrained_checkpoint=null", "tokenizer.tokenizer_type=ByteTokenizer"]
"""Overrides that free the recipe from a checkpoint and its tokenizer."""


def problems(*words):
    result = CliRunner().invoke(app, ["check", "sft_tiny", *FROM_NOTHING, *words, "--json"])
    return [problem["id"] for problem in json.loads(result.stdout)["problems"]]


def test_a_whole_validation_set_of_fine_tuning_data_may_be_read():
    assert "T35" not in problems("validation.full_validation=true")


def test_epochs_need_samples_that_can_be_counted(tmp_path, monkeypatch):
    monkeypatch.setenv("MB_CACHE_DIR", str(tmp_path))
    epochs = ("train.num_epochs=2", "scheduler.lr_warmup_iters=0")
    assert problems(*epochs) == []
    assert problems(*epochs, f"dataset.dataset_root={tmp_path / 'none'}") == ["D120", "D106"]
    assert problems(*epochs, "dataset.dataloader_type=cyclic") == ["V100"]


@pytest.mark.parametrize(("length", "refused"), [(250, True), (224, False)])
def test_samples_of_few_bits_fit_into_whole_blocks(length, refused):
    lengths = [f"model.seq_length={length}", f"dataset.seq_length={length}"]
    assert ("D83" in problems("model.fp8=hybrid", "model.bf16=true", *lengths)) is refused
    assert "D83" not in problems(*lengths)
    halved = problems("model.fp8=hybrid", "model.bf16=true", "model.context_parallel_size=2", *lengths)
    assert "D83" in halved  # 224 tokens are 112 on each rank
    assert "D83" not in problems("model.context_parallel_size=2", *lengths)


PACKS = "dataset.packed_sequence_specs={packed_sequence_size: 256}"


@pytest.mark.parametrize(
    ("words", "violated"),
    [
        ([PACKS, "train.micro_batch_size=1"], []),
        ([PACKS], ["V139"]),
        ([PACKS, "train.micro_batch_size=1", "validation.eval_micro_batch_size=4"], ["D74"]),
        ([PACKS, "train.micro_batch_size=1", "model.seq_length=512", "dataset.seq_length=512"], ["D70"]),
        (["+dataset.dataset_kwargs.chat=true"], []),
        (["dataset.dataset_kwargs={chat: true, prompt_template: Q}"], ["V047a"]),
    ],
)
def test_packs_are_checked_before_the_launch(words, violated):
    assert problems(*words) == violated
