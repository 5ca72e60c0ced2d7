"""Weights in and out through the commands: a folder of transformers, a checkpoint, and the same folder again."""

import json

import pytest
import torch
from runs import mb, mb_here
from safetensors.torch import load_file

from mb_models.errors import HuggingFaceError
from mb_trainer.bridge import AutoBridge

transformers = pytest.importorskip("transformers")


def llama(folder):
    """Save a small random Llama in bfloat16."""
    torch.manual_seed(3)
    config = transformers.LlamaConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=4096,
        max_position_embeddings=64,
    )
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(folder, max_shard_size="300KB")


def weights(folder):
    """Return all tensors of a folder by name."""
    found = {}
    for path in folder.glob("*.safetensors"):
        found |= load_file(path)
    return found


@pytest.mark.slow
def test_a_model_comes_in_trains_on_two_ranks_and_goes_out(tmp_path):
    llama(tmp_path / "hf")
    done = mb("import-hf", str(tmp_path / "hf"), "--out", str(tmp_path / "imported"))
    assert done.returncode == 0, done.stderr
    done = mb_here("export-hf", str(tmp_path / "imported"), "--out", str(tmp_path / "again"))
    assert done.returncode == 0, done.stderr
    before, after = weights(tmp_path / "hf"), weights(tmp_path / "again")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert sorted(path.name for path in (tmp_path / "imported").iterdir()) == [
        "checkpoints",
        "run_config.yaml",
    ]
    shown = mb_here("config", "show", str(tmp_path / "imported" / "run_config.yaml"), "--out", "runs/x")
    saves = "  save: runs/x/checkpoints\n" in shown.stdout
    assert (shown.returncode, saves) == (0, True)


def test_autobridge_converts_checkpoints_as_the_commands(tmp_path, monkeypatch):
    llama(tmp_path / "hf")
    bridge = AutoBridge.from_hf_pretrained(tmp_path / "hf")
    AutoBridge.import_ckpt(tmp_path / "hf", tmp_path / "imported")
    bridge.export_ckpt(tmp_path / "imported", tmp_path / "again")
    before, after = weights(tmp_path / "hf"), weights(tmp_path / "again")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    with pytest.raises(HuggingFaceError, match=r"--out: .* holds files"):
        bridge.export_ckpt(tmp_path / "imported", tmp_path / "again")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(HuggingFaceError, match=r"one process .WORLD_SIZE=2."):
        AutoBridge.import_ckpt(tmp_path / "hf", tmp_path / "other")


def test_a_run_that_was_not_imported_is_completed_from_a_source(tmp_path):
    tiny = ["train.train_iters=1", "validation.eval_iters=0", "model.seq_length=32", "dataset.seq_length=32"]
    assert mb_here("pretrain", "gpt_tiny", "--out", str(tmp_path / "run"), *tiny).returncode == 0
    assert mb_here("export-hf", str(tmp_path / "run"), "--out", str(tmp_path / "plain")).returncode == 0
    config = json.loads((tmp_path / "plain" / "config.json").read_text())
    named = {"eos_token_id": 9, "bos_token_id": 7, "max_position_embeddings": 131072, "rms_norm_eps": 0.5}
    AutoBridge.from_hf_config(config | named).export_ckpt(tmp_path / "run", tmp_path / "out")
    exported = json.loads((tmp_path / "out" / "config.json").read_text())
    assert exported == config | named | {"rms_norm_eps": config["rms_norm_eps"]}
    before, after = weights(tmp_path / "plain"), weights(tmp_path / "out")
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("command", ["import-hf", "export-hf"])
def test_what_cannot_be_converted_is_an_error(command, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    done = mb_here(command, str(tmp_path), "--out", str(tmp_path / "out"))
    assert done.returncode in (1, 2)
    assert "error: " in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["import-hf", "export-hf"])
def test_a_missing_folder_is_unreadable_input(command, tmp_path):
    done = mb_here(command, str(tmp_path / "missing"), "--out", str(tmp_path / "out"))
    assert done.returncode == 2
    assert "error: " in done.stderr
