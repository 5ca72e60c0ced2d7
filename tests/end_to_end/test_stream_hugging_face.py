"""The example of a streamed Hugging Face dataset: what is read, and an exact resume, also beyond an epoch."""

import json
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("datasets", reason="needs datasets")

from runs import losses

from mb_data import ByteTokenizer
from mb_trainer import pretrain
from mb_trainer.request_reader import read_request

SCRIPT = Path(__file__).parents[2] / "meta" / "examples" / "stream_hugging_face.py"
TEXTS = [f"document {number}, {'x' * (7 * number % 40)}" for number in range(12)]


@pytest.fixture
def example(tmp_path, monkeypatch):
    """Return the module of the example, in a folder with a file of documents."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(SCRIPT.parent)
    monkeypatch.delitem(sys.modules, SCRIPT.stem, raising=False)
    Path("text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    yield __import__(SCRIPT.stem)
    sys.modules.pop(SCRIPT.stem, None)


def stream(example, *, rank=0, ranks=1):
    config = example.StreamConfig(data_files="text.jsonl", seq_length=32, micro_batch_size=2)
    groups = SimpleNamespace(dp=SimpleNamespace(rank=lambda: rank, size=lambda: ranks))
    context = SimpleNamespace(pg_collection=groups, tokenizer=ByteTokenizer())
    return config.build_datasets(context)[0].iterable


def tokens_of(texts):
    eod = ByteTokenizer().eod
    return [token for text in texts for token in [*text.encode(), eod]]


def test_sequences_are_the_documents_one_after_the_other_for_several_epochs(example):
    found = stream(example)
    read = [found.sequence() for _ in range(40)]
    assert all(len(each) == 33 and each[-1] == after[0] for each, after in pairwise(read))
    expected = tokens_of(TEXTS * 4)
    assert [token for each in read for token in each[:-1]] == expected[: 40 * 32]


def test_each_rank_reads_its_own_documents(example):
    parts = [stream(example, rank=rank, ranks=2) for rank in range(2)]
    read = [[token for _ in range(4) for token in part.sequence()[:-1]] for part in parts]
    assert read == [tokens_of(TEXTS[rank::2])[: 4 * 32] for rank in range(2)]


@pytest.mark.parametrize("step", [0, 3, 11, 25])
def test_a_position_is_exact(example, step):
    whole, first = stream(example), stream(example)
    expected = [whole.sequence() for _ in range(40)][step:]
    for _ in range(step):
        first.sequence()
    state = json.loads(json.dumps(first.save_state()))
    resumed = stream(example)
    resumed.restore_state(state)
    assert [resumed.sequence() for _ in range(40 - step)] == expected


def train(overrides, out, *words):
    kept = [word for word in overrides if not word.startswith(("dataset.", "validation."))]
    request = read_request(
        [f"{SCRIPT}:build", *kept, "dataset.data_files=text.jsonl", "dataset.seq_length=32",
         "dataset.micro_batch_size=2", "train.micro_batch_size=2", "train.global_batch_size=4",
         "train.train_iters=6", *words]
    )  # fmt: skip
    pretrain(request.config, out=out, provenance=request.provenance, resume_with_changes=True, environment={})
    sys.modules.pop(SCRIPT.stem, None)
    return losses(out)


def test_a_resumed_run_reads_what_would_have_come_next(overrides, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    straight = train(overrides, tmp_path / "straight")
    train(overrides, tmp_path / "run", "train.exit_interval=4")
    assert train(overrides, tmp_path / "run", "train.exit_interval=null") == straight
    assert len(straight) == 6
