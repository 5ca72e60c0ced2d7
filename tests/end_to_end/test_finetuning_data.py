"""Fine-tuning on questions and answers through the trainer: it learns, and a stop changes nothing."""

import pytest
from runs import metrics, train_here

SMALL = [
    "sft_tiny",
    "tokenizer.tokenizer_type=ByteTokenizer",
    "tokenizer.tokenizer_model=null",
    "model.vocab_size=null",
    "model.num_layers=1",
    "model.hidden_size=32",
    "model.ffn_hidden_size=64",
    "model.num_attention_heads=4",
    "model.num_query_groups=2",
    "model.seq_length=64",
    "dataset.seq_length=64",
    "dataset.largest=5",
    "checkpoint.pretrained_checkpoint=null",
    "train.global_batch_size=8",
    "train.micro_batch_size=4",
    "train.train_iters=8",
    "validation.eval_interval=4",
    "checkpoint.save_interval=4",
    "logger.log_interval=4",
    "scheduler.lr_warmup_iters=2",
]


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return [*SMALL, f"dataset.cache_dir={tmp_path_factory.mktemp('cache')}"]


def losses(out):
    return [row["lm loss"] for row in metrics(out) if "lm loss" in row]


def test_it_learns_and_a_stop_changes_nothing(small, tmp_path):
    train_here(small, tmp_path / "whole")
    train_here([*small, "train.exit_interval=4"], tmp_path / "cut")
    train_here([*small, "train.exit_interval=null"], tmp_path / "cut", resume_with_changes=True)
    whole = losses(tmp_path / "whole")
    assert losses(tmp_path / "cut") == whole
    assert whole[-1] < whole[0] - 0.2
    steps = [row["step"] for row in metrics(tmp_path / "whole") if "lm loss validation" in row]
    assert steps == [4, 8]
    assert "training: 28 samples" in (tmp_path / "whole" / "log.txt").read_text()
