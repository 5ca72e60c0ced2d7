"""Fine-tuning on questions and answers through the trainer: it learns, and a stop changes nothing."""

import re

import pytest
from runs import metrics, train_here

from mb_models import MambaModelConfig
from mb_trainer import pretrain
from mb_trainer.requests import read_request

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


def test_epochs_set_the_length_also_after_a_stop(small, tmp_path):
    epochs = [word for word in small if "train_iters" not in word] + ["train.num_epochs=1.5"]
    train_here([*epochs, "train.exit_interval=4"], tmp_path / "cut")  # the sixth step ends 1.5 x 28 samples
    train_here([*epochs, "train.exit_interval=null"], tmp_path / "cut", resume_with_changes=True)
    train_here([*small, "train.train_iters=6"], tmp_path / "whole")
    assert losses(tmp_path / "cut") == losses(tmp_path / "whole")
    assert len(losses(tmp_path / "whole")) == 6


def test_adapters_learn_answers_in_packs(small, tmp_path):
    train_here([*small, "train.train_iters=2", "checkpoint.save_interval=2"], tmp_path / "base")
    start = f"checkpoint.pretrained_checkpoint={tmp_path / 'base' / 'checkpoints'}"
    packed = ["dataset.packed_sequence_specs={packed_sequence_size: 64}", "train.micro_batch_size=1"]
    rate = [
        "optimizer.lr=0.03",
        "optimizer.min_lr=0.03",
        "validation.eval_iters=0",
        "validation.eval_interval=null",
    ]
    train_here([*small, *packed, *rate, start, "peft=lora"], tmp_path / "adapted")
    assert " M parameters without adapters, " in (tmp_path / "adapted" / "log.txt").read_text()
    adapted = losses(tmp_path / "adapted")
    assert adapted[-1] < adapted[0] - 0.2


def test_packs_teach_what_their_samples_do(small, tmp_path):
    every = ["train.train_iters=4", "validation.eval_interval=null", "validation.eval_iters=0"]
    train_here([*small, *every, "train.global_batch_size=28", "train.micro_batch_size=7"], tmp_path / "rows")
    packed = "dataset.packed_sequence_specs={packed_sequence_size: 64}"
    train_here(
        [*small, *every, packed, "train.global_batch_size=14", "train.micro_batch_size=1"], tmp_path / "packs"
    )
    assert "14 packs of 64 tokens" in (tmp_path / "packs" / "log.txt").read_text()
    assert losses(tmp_path / "packs") == pytest.approx(losses(tmp_path / "rows"), abs=1e-5)
    logs = [(tmp_path / name / "log.txt").read_text() for name in ("rows", "packs")]
    train_here(
        [
            *small,
            *every,
            "train.global_batch_size=28",
            "train.micro_batch_size=7",
            "dataset.pack_sequences_in_batch=true",
        ],
        tmp_path / "in_batch",
    )
    assert losses(tmp_path / "in_batch") == pytest.approx(losses(tmp_path / "rows"), abs=1e-5)
    rows, packs = (re.findall(r"4 steps, ([0-9,]+) tokens", text) for text in logs)
    assert rows == packs != []


def test_packs_teach_a_hybrid_what_their_samples_do(small, tmp_path):
    words = [*small, "train.train_iters=2", "validation.eval_interval=null", "validation.eval_iters=0"]
    sizes = {
        "rows": ["train.global_batch_size=28", "train.micro_batch_size=28"],
        "packs": [
            "dataset.packed_sequence_specs={packed_sequence_size: 64}",
            "train.global_batch_size=14",
            "train.micro_batch_size=1",
        ],
    }
    for name, size in sizes.items():
        request = read_request([*words, *size])
        request.config.model = MambaModelConfig(
            hybrid_layer_pattern="M*",
            num_layers=2,
            hidden_size=32,
            num_attention_heads=4,
            mamba_state_dim=8,
            mamba_head_dim=8,
            mamba_num_groups=2,
            seq_length=64,
            transformer_impl="local",
            calculate_per_token_loss=True,
            hidden_dropout=0.0,
            attention_dropout=0.0,
        )
        pretrain(request.config, name=request.name, out=tmp_path / name, environment={})
    assert losses(tmp_path / "packs") == pytest.approx(losses(tmp_path / "rows"), abs=1e-5)
