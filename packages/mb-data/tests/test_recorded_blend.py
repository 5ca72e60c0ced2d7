"""Blends that a later start opens from the record of an earlier one."""

import json
import os
import pickle
from types import SimpleNamespace

import numpy as np
import pytest

from mb_data import ByteTokenizer, DatasetBuildContext, GPTDatasetConfig
from mb_data.errors import IndexedFormatError

mb_host = pytest.importorskip("mb_host", reason="needs the test group")
mb_host.install()
mb_host.quiet()
pytest.importorskip("megatron.core.datasets.gpt_dataset", reason="needs the mcore extra")
mcore = pytest.importorskip("mb_data.mcore")
recorded_blend = pytest.importorskip("mb_data.megatron.recorded_blend")


def start(pairs, cache, *, train=40, valid=6, **values):
    settings = {
        "seq_length": 8,
        "split": "90,10,0",
        "blend": (pairs, [3.0, 1.0, 2.0]),
        "reset_position_ids": False,
        "reset_attention_mask": False,
        "eod_mask_loss": False,
        "path_to_cache": str(cache),
    }
    context = DatasetBuildContext(
        train_samples=train, valid_samples=valid, test_samples=0, tokenizer=ByteTokenizer()
    )
    return mcore.build_gpt_datasets(GPTDatasetConfig(**settings | values), context)


def tokens_of(dataset):
    return [dataset[index]["tokens"].tolist() for index in range(len(dataset))]


def is_from_record(datasets):
    return isinstance(datasets[0], recorded_blend.RecordedBlend)


@pytest.fixture
def pairs(write_pair):
    return [write_pair(name, documents=50, first=first) for name, first in (("a", 0), ("b", 80), ("c", 160))]


@pytest.fixture
def cache(pairs, tmp_path):
    """The folder of the indices after a first start."""
    start(pairs, tmp_path / "cache")
    return tmp_path / "cache"


def only(cache, pattern):
    (path,) = cache.rglob(pattern)
    return path


BLENDS = {
    "one blend, divided": lambda pairs: {},
    "a blend for each split": lambda pairs: {
        "split": None,
        "blend": None,
        "blend_per_split": [(pairs, [1.0, 2.0, 3.0]), (pairs[2:], None), None],
    },
    "in proportion to the sizes": lambda pairs: {"blend": (pairs, None)},
    "one epoch of validation": lambda pairs: {"blend": (pairs, None), "full_validation": True},
}


@pytest.mark.parametrize("values", BLENDS.values(), ids=BLENDS)
def test_a_second_start_reads_the_samples_of_the_first(pairs, tmp_path, values):
    first, second = (start(pairs, tmp_path / "cache", **values(pairs)) for _ in range(2))
    assert (is_from_record(first), is_from_record(second)) == (False, True)
    assert [tokens_of(each) for each in first[:2]] == [tokens_of(each) for each in second[:2]]
    described = [
        (found[0].unique_description, found[0].unique_description_hash, found[0].weights, found[0].size)
        for found in (first, second)
    ]
    assert described[0] == described[1]


def test_a_copy_for_another_process_reads_the_same(pairs, cache):
    train = start(pairs, cache)[0]
    expected = tokens_of(train)
    assert tokens_of(pickle.loads(pickle.dumps(train))) == expected
    assert [each.dataset_path for each in train.datasets[:]] == pairs


def test_progress_is_complete_at_once(pairs, cache):
    seen = []
    config = GPTDatasetConfig(
        seq_length=8,
        split="90,10,0",
        blend=(pairs, [3.0, 1.0, 2.0]),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        path_to_cache=str(cache),
    )
    context = DatasetBuildContext(
        train_samples=40,
        valid_samples=6,
        test_samples=0,
        tokenizer=ByteTokenizer(),
        progress=lambda *values: seen.append(values),
    )
    assert is_from_record(mcore.build_gpt_datasets(config, context))
    assert seen == [("build sample indices", 6, 6)]


class TestStaleRecord:
    """A record is not used if anything differs; the samples are those of the data as it is."""

    @pytest.mark.parametrize("values", [{"random_seed": 7}, {"train": 41}, {"seq_length": 9}])
    def test_other_settings(self, pairs, cache, values):
        assert not is_from_record(start(pairs, cache, **values))

    def test_other_data(self, pairs, cache, write_pair):
        write_pair("b", documents=50, first=200)
        found = start(pairs, cache)
        assert not is_from_record(found)
        assert tokens_of(found[0]) == tokens_of(start(pairs, cache / "fresh")[0])

    @pytest.mark.parametrize(
        "change",
        [
            lambda path: path.unlink(),
            lambda path: os.utime(path, ns=(1, 1)),
            lambda path: path.write_bytes(path.read_bytes() + b"\0"),
        ],
    )
    def test_a_changed_index(self, pairs, cache, change):
        change(sorted(cache.rglob("*-GPTDataset-train-shuffle_index.npy"))[1])
        before = tokens_of(start(pairs, cache / "fresh")[0])
        found = start(pairs, cache)
        assert (is_from_record(found), tokens_of(found[0])) == (False, before)
        assert is_from_record(start(pairs, cache))

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "{",
            "[]",
            "{}",
            '{"format": 2}',
            '{"format": 1, "splits": 3, "files": {}}',
            '{"format": 1, "splits": [], "files": []}',
        ],
    )
    def test_a_damaged_record(self, pairs, cache, text):
        record = only(cache, "datasets-*.json")
        whole = record.read_text()
        record.write_text(text)
        assert not is_from_record(start(pairs, cache))
        assert record.read_text() == whole

    def test_a_file_that_disappears_as_the_folder_is_read(self, pairs, cache):
        """A temporary file of another process, between the listing and the query of its size."""
        only(cache, "datasets-*.json").with_name(".renamed.partial").symlink_to(cache / "none")
        assert is_from_record(start(pairs, cache))

    def test_a_record_without_the_size_of_a_file(self, pairs, cache):
        record = only(cache, "datasets-*.json")
        values = json.loads(record.read_text())
        values["files"].popitem()
        record.write_text(json.dumps(values))
        assert not is_from_record(start(pairs, cache))

    def test_a_record_that_another_rank_does_not_have(self, pairs, cache):
        config = start(pairs, cache)[0].config
        digest = lambda own: [own, (True, own[1])]  # noqa: E731
        others = {
            "the same": digest,
            "none": lambda own: [own, (True, None)],
            "reads nothing": lambda own: [own, (False, None)],
            "rank 0 has none": lambda own: [(True, None), own],
        }
        found = {
            name: recorded_blend.find_record(config, [40, 6, 0], reads_data=True, gather=gather) is not None
            for name, gather in others.items()
        }
        assert found == {"the same": True, "none": False, "reads nothing": True, "rank 0 has none": False}

    def test_no_record_in_a_folder_that_cannot_be_written(self, pairs, tmp_path, monkeypatch):
        def write_text(path, text, **encoding):
            raise PermissionError(path)

        with monkeypatch.context() as patch:
            patch.setattr("pathlib.Path.write_text", write_text)
            start(pairs, tmp_path / "cache")
        assert list((tmp_path / "cache").rglob("datasets-*")) == []


class TestChangedAfterTheStart:
    """Files are opened late; what was replaced in between is an error, not other samples."""

    def test_an_index_that_is_removed(self, pairs, cache):
        train = start(pairs, cache)[0]
        for path in cache.rglob("*-GPTDataset-train-sample_index.npy"):
            path.unlink()
        with pytest.raises(
            IndexedFormatError, match=r"sample_index.npy: was removed or replaced since the start"
        ):
            tokens_of(train)

    def test_an_index_that_is_a_pickle_of_the_same_size(self, pairs, cache):
        train = start(pairs, cache)[0]
        for path in cache.rglob("*-GPTDataset-train-sample_index.npy"):
            path.write_bytes(pickle.dumps([1, 2]).ljust(path.stat().st_size, b"\0"))
        with pytest.raises(IndexedFormatError, match="is not an array of numbers"):
            tokens_of(train)

    def test_a_pair_of_another_size(self, pairs, cache, write_pair):
        train = start(pairs, cache)[0]
        write_pair("b", documents=49, first=80)
        with pytest.raises(IndexedFormatError, match=r"b: the files had \(\d+, \d+\) bytes"):
            tokens_of(train)

    def test_another_time_alone_is_a_warning(self, pairs, cache, caplog):
        train, expected = (start(pairs, cache)[0] for _ in range(2))
        expected = tokens_of(expected)
        os.utime(f"{pairs[1]}.bin", ns=(1, 1))
        assert tokens_of(train) == expected
        assert [record.getMessage().partition(": ")[::2] for record in caplog.records] == [
            (pairs[1], "modified since the start, at the same sizes. Samples are read from it as it is.")
        ]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, True),
        ({"blend": None, "blend_per_split": [(["a", "b"], None), None, None]}, True),
        ({"blend": (["a"], None)}, False),
        ({"blend": None}, False),
        ({"blend": (["s3://a", "b"], None)}, False),
        ({"fast_cache_load": True}, False),
        ({"defer_npy_index_mmap": True}, False),
    ],
)
def test_datasets_that_are_recorded(values, expected):
    settings = {
        "blend": (["a", "b"], None),
        "blend_per_split": None,
        "fast_cache_load": False,
        "defer_npy_index_mmap": False,
    }
    assert recorded_blend.is_recordable(SimpleNamespace(**settings | values)) is expected


def test_indices_are_the_same_arrays(pairs, cache):
    train = start(pairs, cache)[0]
    again = start(pairs, cache / "fresh")[0]
    assert np.array_equal(train.dataset_index, again.dataset_index)
    assert np.array_equal(train.dataset_sample_index, again.dataset_sample_index)
