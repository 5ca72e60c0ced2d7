"""A trainer small enough for tests, and the host in place of CUDA before any test imports megatron."""

import random
import sys
from pathlib import Path

import pytest
from hypothesis import settings

import mb_guard
import mb_host

settings.register_profile("without_deadline", deadline=None)  # a shared machine misses 200 ms now and then
settings.load_profile("without_deadline")
mb_host.install()  # without effect where there is a GPU
mb_guard.install(quiet=True)
sys.path.insert(0, str(Path(__file__).parent))

WORDS = [
    "the",
    "loop",
    "trains",
    "a",
    "small",
    "model",
    "on",
    "text",
    "while",
    "tokens",
    "flow",
    "into",
    "batches",
]


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> Path:
    """A folder of forty text files that a small model can learn something from; its name is not ASCII."""
    folder = tmp_path_factory.mktemp("überlauf-тест")
    words = random.Random(1)
    for number in range(40):
        (folder / f"{number}.txt").write_text(" ".join(words.choice(WORDS) for _ in range(600)))
    return folder


@pytest.fixture(scope="session")
def overrides(corpus, tmp_path_factory) -> list[str]:
    """The overrides that make gpt_tiny small: a step takes milliseconds."""
    return [
        f"dataset.sources=[{corpus}]",
        f"dataset.cache_dir={tmp_path_factory.mktemp('cache')}",
        "dataset.vocab_size=300",
        "dataset.validation_fraction=0.2",
        "dataset.test_fraction=0.2",
        "dataset.seq_length=32",
        "model.seq_length=32",
        "model.num_layers=1",
        "model.hidden_size=32",
        "model.ffn_hidden_size=64",
        "model.num_attention_heads=4",
        "model.num_query_groups=2",
        "train.train_iters=20",
        "train.global_batch_size=8",
        "train.micro_batch_size=4",
        "validation.eval_interval=10",
        "validation.eval_iters=2",
        "checkpoint.save_interval=10",
        "logger.log_interval=5",
        "scheduler.lr_warmup_iters=2",
    ]
