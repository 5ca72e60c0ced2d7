"""Blends of fine-tuning datasets by weights."""

import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mb_data import (
    BatchSettings,
    BlendError,
    ByteTokenizer,
    ConfigError,
    DataPathError,
    DatasetBuildContext,
    FinetuningDatasetConfig,
    PackedSequenceSpecs,
    ValidationSetOptions,
    build_run_datasets,
)
from mb_data.finetuning.blend import BlendedFinetuningDataset, interleave


@pytest.fixture
def roots(tmp_path):
    for name, count in (("a", 6), ("b", 2)):
        (tmp_path / name).mkdir()
        lines = [{"input": f"{name}{number}", "output": "x"} for number in range(count)]
        for split in ("training", "validation"):
            content = "".join(json.dumps(line) + "\n" for line in lines)
            (tmp_path / name / f"{split}.jsonl").write_text(content)
    return [str(tmp_path / "a"), str(tmp_path / "b")]


def section(roots, tmp_path, **fields):
    options = {"cache_dir": str(tmp_path / "cache"), "num_workers": 0, "do_test": False}
    return FinetuningDatasetConfig(32, dataset_root=roots, **(options | fields))


def build(config, *, train=0, valid=0, **options):
    counts = {"train_samples": train, "valid_samples": valid, "test_samples": 0}
    return config.build_datasets(DatasetBuildContext(**counts, tokenizer=ByteTokenizer(), **options))


def names(dataset):
    return [bytes(dataset[number]["tokens"][:2].tolist()).decode() for number in range(len(dataset))]


def test_samples_are_drawn_by_weight(roots, tmp_path):
    weighted = ["1", roots[0], "3", roots[1]]
    logged = []
    train, _, _ = build(section(weighted, tmp_path), train=16, log=logged.append)
    assert Counter(name[0] for name in names(train)) == {"a": 4, "b": 12}
    assert Counter(name[0] for name in names(train)[:8]) == {"a": 2, "b": 6}
    shorter, _, _ = build(section(weighted, tmp_path), train=8)
    assert names(shorter) == names(train)[:8]
    assert logged == [
        f"training ({roots[0]}/training.jsonl): 6 samples",
        f"training ({roots[1]}/training.jsonl): 2 samples",
    ]
    assert (train.mean_tokens, train.length_counts, train.length(0)) == (4.0, {4: 1.0}, 4)
    assert train.collate([train[0], train[1]])["tokens"].shape == (2, 4)
    with pytest.raises(IndexError):
        train[16]


def test_the_order_of_many_datasets_does_not_depend_on_the_size():
    shares = np.array([0.9] + [0.1 / 99] * 99)
    first = sorted(
        ((k + 0.5) / share, dataset, k) for dataset, share in enumerate(shares) for k in range(500)
    )
    numbers, positions = interleave(shares, size=400)
    assert [*zip(numbers.tolist(), positions.tolist(), strict=True)] == [each[1:] for each in first[:400]]


def test_without_weights_an_epoch_contains_each_sample_once(roots, tmp_path):
    train, _, _ = build(section(roots, tmp_path), train=16)
    assert len({*names(train)[:8]}) == len({*names(train)[8:]}) == 8


def test_a_complete_validation_set_contains_the_samples_of_every_folder(roots, tmp_path):
    config = section(["1", roots[0], "9", roots[1]], tmp_path)
    context = DatasetBuildContext(train_samples=0, valid_samples=3, test_samples=0, tokenizer=ByteTokenizer())
    datasets = build_run_datasets(config, context, validation=ValidationSetOptions(complete=True))
    settings = BatchSettings(micro_batch_size=2, global_batch_size=2)
    (found,) = datasets.loaders(settings).iterators().valid
    rows = [bytes(row[:2].tolist()).decode() for batch in found.data() for row in batch["tokens"]]
    assert sorted(rows) == ["a0", "a1", "a2", "a3", "a4", "a5", "b0", "b1"]


def test_packs_are_blended(roots, tmp_path):
    specs = PackedSequenceSpecs(packed_sequence_size=32)
    train, _, _ = build(section(roots, tmp_path, packed_sequence_specs=specs), train=2)
    assert sorted(pack[0] for pack in names(train)) == ["a", "b"]
    assert (train.length(0), train.mean_tokens) == (0, 16.0)
    settings = BatchSettings(micro_batch_size=1, global_batch_size=2)
    datasets = build_run_datasets(
        section(roots, tmp_path, packed_sequence_specs=specs),
        DatasetBuildContext(train_samples=2, valid_samples=0, test_samples=0, tokenizer=ByteTokenizer()),
    )
    data = datasets.loaders(settings).iterators()
    assert data.sizes.tokens == 16.0
    assert next(data.train)["cu_seqlens"].shape[0] == 1


def test_bad_roots_are_rejected(roots, tmp_path):
    with pytest.raises(ConfigError, match=r"\[D104\] dataset.dataset_root.*1 of 2 prefixes have a weight"):
        section(["1", "a", "b", "c"], tmp_path).finalize()
    with pytest.raises(ConfigError, match=r"\[D104\].* is a list with max_train_samples=4"):
        section(roots, tmp_path, max_train_samples=4).finalize()
    with pytest.raises(BlendError, match=r"dataset.dataset_root: weights that are not positive: 0.0"):
        assert section(["0", "a"], tmp_path).roots
    with pytest.raises(DataPathError, match=r"none/training\.jsonl does not exist"):
        build(section([*roots, str(tmp_path / "none")], tmp_path), train=2)


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=5), st.integers(1, 300))
def test_every_stretch_of_a_blend_has_its_weights(weights, size):
    shares = np.array(weights) / sum(weights)
    numbers, positions = interleave(shares, size=size)
    assert len(numbers) == size
    for number, share in enumerate(shares):
        drawn = positions[numbers == number]
        assert drawn.tolist() == list(range(len(drawn)))
        assert abs(len(drawn) - share * size) <= len(shares)


def test_a_blend_of_one_dataset_is_that_dataset(roots, tmp_path):
    (train, _, _) = build(section(roots[:1], tmp_path), train=3)
    assert not isinstance(train, BlendedFinetuningDataset)
