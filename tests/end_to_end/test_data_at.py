"""`mb data at` prints the sequences that the model was trained on in a step, bit for bit."""

import json
from importlib import import_module

import pytest
import torch
from runs import train_here
from typer.testing import CliRunner

from mb_trainer.cli.app import app


class Recorder:
    """Forward step that records the tokens of each step."""

    def __init__(self):
        self.tokens = {}

    def __call__(self, state, data_iterator, model):
        batch = next(data_iterator)
        if model.training:
            step = state.train_state.step + 1
            self.tokens.setdefault(step, []).extend(batch["tokens"].tolist())
        return import_module("mb_models").gpt_forward_step(iter([batch]), model)


def answer(*words):
    result = CliRunner().invoke(app, ["data", "at", *words])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def trained(overrides, tmp_path):
    """Return the tokens of each step of a run with a batch ramp-up, stopped after three steps and resumed."""
    recorder, words = (
        Recorder(),
        [*overrides, "train.rampup_batch_size=[4,2,8]", "checkpoint.save_interval=3"],
    )
    words += ["train.global_batch_size=8", "train.micro_batch_size=2", "train.train_iters=6"]
    train_here([*words, "train.exit_interval=3"], tmp_path / "run", forward_step_func=recorder)
    train_here(
        [*words, "train.exit_interval=null"],
        tmp_path / "run",
        forward_step_func=recorder,
        resume_with_changes=True,
    )
    return recorder.tokens


def test_the_sequences_are_those_of_the_step_through_ramp_up_and_resume(trained, tmp_path):
    assert sorted(trained) == [1, 2, 3, 4, 5, 6]
    assert len(trained[6]) > len(trained[1])
    for step, tokens in trained.items():
        found = json.loads(answer(str(tmp_path / "run"), "--step", str(step), "--json"))
        assert [sequence["tokens"] for sequence in found["sequences"]] == tokens
        assert found["metrics"]["lm loss"] > 0
        assert all(sequence["documents"] for sequence in found["sequences"])
    assert not torch.distributed.is_initialized()


def test_the_text_has_its_documents_and_losses(trained, tmp_path):
    text = answer(str(tmp_path / "run"), "--step", "2")
    assert text.startswith("step 2: samples 4 to ")
    assert "lm loss" in text
    assert "tokens " in text
    missing = CliRunner().invoke(app, ["data", "at", str(tmp_path / "run"), "--step", "99"])
    assert (missing.exit_code, "the run ended at step 6" in missing.stderr) == (2, True)


def test_the_documents_of_shards_are_found_in_their_inputs(overrides, tmp_path):
    lines = tmp_path / "text.jsonl"
    texts = [f"this is the text of document {number}, and no other" for number in range(200)]
    lines.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    built = ["data", "build", "--input", str(lines), "--tokenizer", "ByteTokenizer", "--shard-size", "2KB"]
    assert CliRunner().invoke(app, [*built, "--out", str(tmp_path / "shards")]).exit_code == 0
    dataset = {"seq_length": 32, "data_path": str(tmp_path / "shards"), "split": "90,5,5"}
    dataset |= {"reset_position_ids": False, "reset_attention_mask": False, "eod_mask_loss": False}
    section = "{_target_: mb_data.config.GPTDatasetConfig, " + json.dumps(dataset)[1:].replace('"', "")
    words = [word for word in overrides if not word.startswith("dataset.")]
    section = section.replace("90,5,5", "'90,5,5'")
    train_here(
        [*words, f"dataset={section}", "tokenizer.tokenizer_type=ByteTokenizer", "train.train_iters=2"],
        tmp_path / "run",
    )
    step = json.loads(answer(str(tmp_path / "run"), "--step", "2", "--origins", "--json"))
    parts = [part for sequence in step["sequences"] for part in sequence["documents"]]
    assert parts
    assert all(part["origin"] == f"{lines}:{1 + part['document']}" for part in parts)
    text = answer(str(tmp_path / "run"), "--step", "2", "--origins")
    assert f", from {parts[0]['origin']}\n" in text
