"""Packs in Megatron-Bridge's files."""

import json
import pickle

import numpy as np
import pytest

from mb_data import (
    BadDocumentError,
    ByteTokenizer,
    ConfigError,
    DataPathError,
    DatasetBuildContext,
    FinetuningDatasetConfig,
    NotEnoughSamplesError,
    PackedSequenceSpecs,
    tokenize_samples,
)
from mb_data.data_checks import verify_dataset_files
from mb_data.finetuning.bridge_packs import load_packs, write_packs
from mb_data.finetuning.split_samples import pack_samples

ROW = {"input_ids": [97, 98, 256, 99, 100], "loss_mask": [0, 1, 0, 1, 0], "seq_start_id": [0, 3]}
"""Samples "ab|" and "cd", with a loss on "|" and on "d"."""


def save(path, rows):
    content = np.empty(len(rows), object)
    content[:] = rows
    np.save(path, content, allow_pickle=True)
    return path


def section(tmp_path, *, size=16, **specs):
    return FinetuningDatasetConfig(
        size,
        cache_dir=str(tmp_path / "cache"),
        num_workers=0,
        do_test=False,
        packed_sequence_specs=PackedSequenceSpecs(packed_sequence_size=size, **specs),
    )


def build(config, *, train=1, valid=0):
    counts = {"train_samples": train, "valid_samples": valid, "test_samples": 0}
    return config.build_datasets(
        DatasetBuildContext(**counts, tokenizer=ByteTokenizer(), log=lambda line: None)
    )


def test_a_pack_becomes_inputs_labels_and_boundaries(tmp_path):
    path = save(tmp_path / "train.npy", [ROW])
    config = section(tmp_path, packed_train_data_path=str(path), packed_val_data_path=str(path))
    verify_dataset_files(config, evaluated=True)
    train, valid, _ = build(config, valid=1)
    pack = train[0]
    assert pack["tokens"][:3].tolist() == [97, 98, 99]
    assert pack["labels"][:3].tolist() == [98, 256, 100]
    assert pack["loss_mask"].tolist() == [0, 1, 1] + [0] * 13
    assert pack["cu_seqlens"].tolist() == [0, 2, 3, 16]
    assert valid[0]["tokens"].tolist() == pack["tokens"].tolist()


STATISTICS = [{"max_samples_per_bin": 2, "pack_size": 16}, {"max_samples_per_bin": 5, "pack_size": 16}]


def with_statistics(tmp_path, statistics):
    (tmp_path / "statistics.json").write_text(statistics)
    return section(
        tmp_path,
        packed_train_data_path=str(save(tmp_path / "train.npy", [ROW])),
        packed_metadata_path=str(tmp_path / "statistics.json"),
        pad_cu_seqlens=True,
    )


def test_statistics_of_all_packs_determine_the_length_of_cu_seqlens(tmp_path):
    train, _, _ = build(with_statistics(tmp_path, json.dumps(STATISTICS)))
    assert train[0]["cu_seqlens"].tolist() == [0, 2, 3, 16, 16, 16, 16]


@pytest.mark.parametrize(
    ("statistics", "message"),
    [
        ("{", r"statistics.json: is not JSON"),
        ("[3]", r"is not a list of objects with max_samples_per_bin \(TypeError"),
        ("[]", r"is not a list of objects with max_samples_per_bin \(ValueError"),
        (
            json.dumps([{**STATISTICS[0], "pack_size": 8}]),
            r"describes packs of \[8\] tokens, but packed_sequence_size=16",
        ),
        (json.dumps([{"max_samples_per_bin": 1}]), r"states at most 1 samples in a pack, but a pack has 2"),
    ],
)
def test_statistics_that_do_not_describe_the_packs_are_rejected(tmp_path, statistics, message):
    with pytest.raises(BadDocumentError, match=message):
        build(with_statistics(tmp_path, statistics))


def test_missing_statistics_are_named(tmp_path):
    config = with_statistics(tmp_path, "")
    (tmp_path / "statistics.json").unlink()
    with pytest.raises(DataPathError, match=r"packed_metadata_path: .*statistics.json does not exist"):
        build(config)


@pytest.mark.parametrize("suffix", [".npy", ".parquet"])
def test_packs_are_written_and_read_again(tmp_path, suffix):
    if suffix == ".parquet":
        pytest.importorskip("pyarrow", reason="needs the parquet extra")
    lines = [{"input": "a" * number, "output": "xyz"} for number in range(9)]
    (tmp_path / "training.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    config = section(tmp_path)
    config.dataset_root, config.seed = str(tmp_path), 5
    samples = tokenize_samples(tmp_path / "training.jsonl", config=config, tokenizer=ByteTokenizer())
    write_packs(samples, pack_samples(samples, size=16, multiple=1), tmp_path / f"packs{suffix}")
    expected, _, _ = build(config, train=6)
    for place in (f"packs{suffix}", f"pack*{suffix}"):
        config.packed_sequence_specs.packed_train_data_path = str(tmp_path / place)
        found, _, _ = build(config, train=6)
        for number in range(6):
            assert {name: each.tolist() for name, each in found[number].items()} == {
                name: each.tolist() for name, each in expected[number].items()
            }


def test_folders_and_schema(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs the parquet extra")
    samples, packs = load_packs(
        [save(tmp_path / "a.npy", [ROW, ROW])], cache_dir=tmp_path, pack_size=8, multiple=2, vocab_size=257
    )
    (tmp_path / "packs").mkdir()
    write_packs(samples, packs, tmp_path / "packs" / "shard_0.parquet")
    table = parquet.read_table(tmp_path / "packs" / "shard_0.parquet")
    assert table.to_pylist() == [ROW, ROW]
    assert [str(each.type) for each in table.schema] == [
        "list<element: int32>",
        "list<element: uint8>",
        "list<element: int32>",
    ]
    config = section(tmp_path, packed_train_data_path=str(tmp_path / "packs"))
    assert len(build(config)[0].packs) == 2


class Harmful:
    def __reduce__(self):
        return print, ("executed",)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"input_ids": [1, 2]}], r"row 1: is not a pack \('loss_mask'\); it needs input_ids, loss_mask"),
        ([ROW | {"seq_start_id": [[0], [3]]}], "row 1: is not a pack .a list in a list"),
        ([ROW | {"loss_mask": 1}], "row 1: is not a pack .a list in a list, or a single number"),
        ([ROW | {"input_ids": [2**70] * 5}], "row 1: is not a pack"),
        ([ROW | {"input_ids": [1.5, 2, 3, 4, 5]}], "row 1: is not a pack .an item is not an integer"),
        ([ROW | {"loss_mask": [0.5, 1, 1, 1, 1]}], "row 1: is not a pack .an item is not an integer"),
        (
            [ROW | {"loss_mask": [float("nan"), 1, 1, 1, 1]}],
            "row 1: is not a pack .an item is not an integer",
        ),
        ([ROW | {"input_ids": ["1", "2", "3", "4", "5"]}], "row 1: is not a pack"),
        ([ROW | {"loss_mask": [1]}], r"row 1: is not a pack \(5 input_ids, 1 in loss_mask"),
        ([ROW | {"seq_start_id": [0, 4]}], "samples begin at 0 and have two or more ids"),
        ([ROW, ROW | {"input_ids": [1, 2, 300, 4, 5]}], r"row 2: has the id 300, but the tokenizer has 257"),
        (
            [{**ROW, "input_ids": [1] * 40, "loss_mask": [1] * 40}],
            "row 1: has 38 tokens, which do not fit into",
        ),
        ([Harmful()], r"is not an array of packs \(it refers to builtins\.print\)"),
    ],
)
def test_files_of_other_content_are_rejected(tmp_path, rows, message, capsys):
    config = section(tmp_path, packed_train_data_path=str(save(tmp_path / "a.npy", rows)))
    with pytest.raises(BadDocumentError, match=message):
        build(config)
    assert "executed" not in capsys.readouterr().out


@pytest.mark.parametrize("content", [b"none", pickle.dumps([ROW])])
def test_a_file_that_is_no_array_is_rejected(tmp_path, content):
    (tmp_path / "a.npy").write_bytes(content)
    with pytest.raises(BadDocumentError, match=r"a\.npy: is not an array of packs"):
        build(section(tmp_path, packed_train_data_path=str(tmp_path / "a.npy")))
    np.save(tmp_path / "a.npy", np.arange(3))
    with pytest.raises(BadDocumentError, match="it contains int64 instead of dictionaries"):
        build(section(tmp_path, packed_train_data_path=str(tmp_path / "a.npy")))


DEEP = b"\x80\x02})" + b"\x85" * 200_000 + b"Ns."
"""Tuples in each other in so many levels that their hash overflows the stack of the process."""
LARGE = (
    b"\x80\x02cnumpy._core.multiarray\n_reconstruct\ncnumpy\nndarray\nJ\xff\xff\xff\x7f\x85"
    + b"\x8c\x01O\x87R."
)


@pytest.mark.parametrize(("content", "problem"), [(DEEP, "more than 100 levels"), (LARGE, "has no pack")])
def test_a_file_declares_no_more_than_it_has(tmp_path, content, problem):
    rows = save(tmp_path / "a.npy", [ROW]).read_bytes()
    (tmp_path / "a.npy").write_bytes(rows[: rows.index(b"\n") + 1] + content)
    with pytest.raises((BadDocumentError, NotEnoughSamplesError), match=problem):
        build(section(tmp_path, packed_train_data_path=str(tmp_path / "a.npy")))


def test_a_file_without_packs_is_rejected(tmp_path):
    with pytest.raises(NotEnoughSamplesError, match=r"a\.npy: has no pack"):
        build(section(tmp_path, packed_train_data_path=str(save(tmp_path / "a.npy", []))))


def test_paths_are_checked(tmp_path):
    with pytest.raises(DataPathError, match=r"packed_train_data_path: none\.npy is not a file of packs"):
        build(section(tmp_path, packed_train_data_path="none.npy"))
    config = section(tmp_path, packed_train_data_path="a.npy")
    config.max_train_samples = 3
    with pytest.raises(ConfigError, match=r"\[D105\].*has packed_train_data_path with max_train_samples=3"):
        config.finalize()
    samples, packs = load_packs(
        [save(tmp_path / "a.npy", [ROW])], cache_dir=tmp_path, pack_size=8, multiple=1, vocab_size=257
    )
    with pytest.raises(BadDocumentError, match=r"a\.csv: packs are written as \.parquet or \.npy"):
        write_packs(samples, packs, tmp_path / "a.csv")
