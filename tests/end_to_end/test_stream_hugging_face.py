"""A run on a streamed Hugging Face dataset resumes exactly, also beyond an epoch."""

import json
from pathlib import Path

import pytest

pytest.importorskip("datasets", reason="needs datasets")

from runs import losses

from mb_trainer import pretrain
from mb_trainer.requests import read_request

TEXTS = [f"document {number}, {'x' * (7 * number % 40)}" for number in range(12)]
SETTINGS = """
base: gpt_tiny
tokenizer: {tokenizer_type: ByteTokenizer}
validation: {eval_interval: null}
dataset: {_target_: HuggingFaceStreamConfig, hf_data_files: text.jsonl, seq_length: 32}
train: {micro_batch_size: 2, global_batch_size: 4, train_iters: 6}
"""


def train(overrides, out, *words):
    kept = [word for word in overrides if not word.startswith(("dataset.", "validation."))]
    request = read_request(["run.yaml", *kept, "train.micro_batch_size=2", "train.global_batch_size=4",
                            "train.train_iters=6", *words])  # fmt: skip
    pretrain(request.config, out=out, provenance=request.provenance, resume_with_changes=True, environment={})
    return losses(out)


def test_a_resumed_run_reads_what_would_have_come_next(overrides, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    Path("run.yaml").write_text(SETTINGS)
    straight = train(overrides, tmp_path / "straight")
    train(overrides, tmp_path / "run", "train.exit_interval=4")
    assert train(overrides, tmp_path / "run", "train.exit_interval=null") == straight
    assert len(straight) == 6
