"""Streamed Hugging Face datasets: what is read, an exact position, also beyond an epoch, and errors."""

import json
import sys
from itertools import pairwise
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

from mb_data import ByteTokenizer, DatasetBuildContext, HuggingFaceStreamConfig
from mb_data.data_checks import dataset_facts
from mb_data.errors import DataPathError, FormatLibraryError

TEXTS = [f"document {number}, {'x' * (7 * number % 40)}" for number in range(12)]


@pytest.fixture
def documents(tmp_path):
    pytest.importorskip("datasets", reason="needs mb-data[streaming]")
    path = tmp_path / "text.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return str(path)


def batches(documents, *, rank=0, ranks=1, reads_data=True, **fields):
    config = HuggingFaceStreamConfig(hf_data_files=documents, seq_length=32, **fields)
    groups = SimpleNamespace(dp=SimpleNamespace(rank=lambda: rank, size=lambda: ranks))
    context = DatasetBuildContext(
        train_samples=8,
        valid_samples=0,
        test_samples=0,
        tokenizer=ByteTokenizer(),
        pg_collection=groups,
        micro_batch_size=2,
        reads_data=reads_data,
    )
    return config.build_datasets(context)[0]


def stream(documents, **options):
    return batches(documents, **options).iterable


def tokens_of(texts):
    eod = ByteTokenizer().eod
    return [token for text in texts for token in [*text.encode(), eod]]


def test_sequences_are_the_documents_one_after_the_other_for_several_epochs(documents):
    opened = stream(documents)
    read = [opened.sequence() for _ in range(40)]
    assert all(len(each) == 33 and each[-1] == after[0] for each, after in pairwise(read))
    expected = tokens_of(TEXTS * 4)
    assert [token for each in read for token in each[:-1]] == expected[: 40 * 32]


def test_a_document_has_one_end_if_the_tokenizer_appends_it(documents, monkeypatch):
    encode = ByteTokenizer.encode
    monkeypatch.setattr(ByteTokenizer, "encode", lambda self, text: [*encode(self, text), self.eod])
    assert stream(documents).sequence() == tokens_of(TEXTS)[:33]


def test_batches_have_labels_one_token_later(documents):
    batch = next(iter(batches(documents)))
    assert {name: tuple(value.shape) for name, value in batch.items()} == dict.fromkeys(batch, (2, 32))
    expected = tokens_of(TEXTS)
    assert batch["tokens"].flatten().tolist() == expected[:64]
    assert batch["labels"].flatten().tolist() == expected[1:65]


def test_each_rank_reads_its_own_documents(documents):
    parts = [stream(documents, rank=rank, ranks=2) for rank in range(2)]
    read = [[token for _ in range(4) for token in part.sequence()[:-1]] for part in parts]
    assert read == [tokens_of(TEXTS[rank::2])[: 4 * 32] for rank in range(2)]
    assert batches(documents, reads_data=False) is None


@pytest.mark.parametrize("step", [0, 3, 11, 25])
def test_a_position_is_exact(documents, step):
    complete, first = stream(documents), stream(documents)
    expected = [complete.sequence() for _ in range(40)][step:]
    for _ in range(step):
        first.sequence()
    state = json.loads(json.dumps(first.save_state()))
    resumed = stream(documents)
    resumed.restore_state(state)
    assert [resumed.sequence() for _ in range(40 - step)] == expected


def test_what_cannot_be_streamed_is_named(documents, tmp_path):
    with pytest.raises(DataPathError, match=r"dataset\.hf_dataset: 'json' cannot be read"):
        batches(str(tmp_path / "missing.jsonl"))
    with pytest.raises(DataPathError, match=r"no text in column 'body' \(columns: text\)"):
        stream(documents, text_key="body").sequence()
    with pytest.raises(DataPathError, match="no document for rank 12 of 13"):
        stream(documents, rank=12, ranks=13).sequence()


@pytest.mark.parametrize("evaluated", [True, False])
def test_local_files_that_do_not_exist_are_found_without_reading_any(tmp_path, evaluated):
    there, missing = tmp_path / "a.jsonl", str(tmp_path / "b*.jsonl")
    there.write_text("{}")
    for names, expected in (
        (str(tmp_path / "*.jsonl"), {}),
        ([str(there), "https://host/b.jsonl"], {}),
        (
            [str(there), missing],
            {
                "dataset_error": f"dataset.hf_data_files: no file matches {missing!r}. The documents are read from it. "
                "Correct the path."
            },
        ),
    ):
        section = HuggingFaceStreamConfig(seq_length=8, hf_data_files=names)
        assert dataset_facts(section, evaluated=evaluated) == expected
    assert dataset_facts(HuggingFaceStreamConfig(seq_length=8, hf_dataset="name"), evaluated=evaluated) == {}


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(FormatLibraryError, match=r"mb-data\[streaming\]"):
        batches("text.jsonl")
