import json
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mb_data import (
    RULES,
    BatchPadding,
    ByteTokenizer,
    DatasetBuildContext,
    FinetuningDatasetConfig,
    PackedSequenceSpecs,
    build_data_iterator,
    build_finetuning_datasets,
    first_fit_decreasing,
)
from mb_data.finetuning.split_samples import training_epoch_size

END = ByteTokenizer.eod
ANSWERS = ["one", "three", "a", "seventeen", "two", "eleven!"]


@pytest.fixture
def config(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    lines = [{"input": "", "output": answer} for answer in ANSWERS]
    for split in ("training", "validation"):
        (root / f"{split}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return FinetuningDatasetConfig(
        20,
        dataset_root=str(root),
        dataset_kwargs={"prompt_template": "{input}{output}"},
        cache_dir=str(tmp_path / "cache"),
        num_workers=0,
        packed_sequence_specs=PackedSequenceSpecs(packed_sequence_size=20),
    )


def build(config, *, train=0, valid=2, **options):
    context = DatasetBuildContext(
        train_samples=train, valid_samples=valid, test_samples=0, tokenizer=ByteTokenizer(), **options
    )
    return build_finetuning_datasets(config, context)


@given(lengths=st.lists(st.integers(1, 20), max_size=60))
def test_first_fit_decreasing_equals_the_direct_implementation(lengths):
    slow: list[list[int]] = []
    for number in sorted(range(len(lengths)), key=lambda each: -lengths[each]):
        room = (pack for pack in slow if sum(lengths[each] for each in pack) + lengths[number] <= 20)
        pack = next(room, None)
        if pack is None:
            slow.append(pack := [])
        pack.append(number)
    assert first_fit_decreasing(lengths, size=20) == slow


def test_a_sample_that_fits_into_no_pack_is_rejected():
    with pytest.raises(ValueError, match="a sample of 21 tokens does not fit into a pack of 20"):
        first_fit_decreasing([3, 21], size=20)


def test_a_sample_without_tokens_is_rejected():
    with pytest.raises(ValueError, match="a sample of 0 tokens"):
        first_fit_decreasing([3, 0], size=20)


def test_a_pack_has_sample_boundaries_and_positions_restart(config):
    logged = []
    _, valid, _ = build(config, log=logged.append)
    pack = valid[0]
    text = "".join("|" if label == END else chr(label) for label in pack["labels"].tolist())
    assert text == "eventeen|leven!|ne||"
    assert pack["cu_seqlens"].tolist() == [0, 9, 16, 19, 20]
    assert pack["max_seqlen"] == 9
    assert pack["position_ids"].tolist() == [*range(9), *range(7), *range(3), 0]
    rest = valid[1]
    assert rest["cu_seqlens"].tolist() == [0, 5, 8, 20]
    assert rest["max_seqlen"] == 12  # the padding
    assert rest["loss_mask"].tolist() == [1] * 8 + [0] * 12
    assert rest["padding_mask"].tolist() == [False] * 8 + [True] * 12
    assert {name: each.dtype for name, each in pack.items()} == {
        "tokens": torch.int64,
        "labels": torch.int64,
        "loss_mask": torch.float32,
        "padding_mask": torch.bool,
        "position_ids": torch.int64,
        "cu_seqlens": torch.int32,
        "max_seqlen": torch.int32,
    }
    assert logged == ["validation: 6 samples", "  2 packs of 20 tokens, 70.0% filled with samples"]


def test_samples_are_padded_to_a_multiple_and_cu_seqlens_to_equal_length(config):
    config.packed_sequence_specs = PackedSequenceSpecs(
        packed_sequence_size=20, pad_seq_to_mult=4, pad_cu_seqlens=True
    )
    _, valid, _ = build(config)
    borders = [valid[position]["cu_seqlens"].tolist() for position in range(len(valid))]
    assert valid[0]["padding_mask"].tolist() == [*[False] * 9, *[True] * 3, *[False] * 5, *[True] * 3]
    assert borders[0] == [0, 12, 20, 20, 20, 20]
    assert {len(each) for each in borders} == {6}
    assert all(border % 4 == 0 for each in borders for border in each)


def test_every_sample_is_padded_to_the_slices_of_context_parallel_ranks(config):
    config.packed_sequence_specs.packed_sequence_size = config.seq_length = 24
    config.packed_sequence_specs.pad_seq_to_mult = 3
    size = training_epoch_size(config, ByteTokenizer(), padding=BatchPadding(sequence_multiple=4))
    train, _, _ = build(config, train=2 * size, padding=BatchPadding(sequence_multiple=4))
    assert train.epoch == size
    assert {int(each) % 12 for index in range(size) for each in train[index]["cu_seqlens"]} == {0}


def test_long_samples_are_truncated_to_the_maximum(config):
    config.packed_sequence_specs = PackedSequenceSpecs(packed_sequence_size=20, max_single_sequence_length=4)
    logged = []
    _, valid, _ = build(config, log=logged.append)
    assert int(valid[0]["max_seqlen"]) == 4
    assert logged[0] == "validation: 6 samples, 3 of them truncated to 4 tokens"


@pytest.mark.parametrize("size", [0, 100])
def test_packs_are_cached_and_rebuilt_if_damaged(config, size):
    _, first, _ = build(config)
    (file,) = first.samples.folder.glob("packs-*.npz")
    made = file.stat().st_mtime_ns
    build(config)
    assert file.stat().st_mtime_ns == made
    file.write_bytes(file.read_bytes()[:size])
    _, again, _ = build(config)
    assert np.array_equal(again.packs.members, first.packs.members)
    assert [path.name for path in first.samples.folder.glob("*packs-*")] == [file.name]


def test_packs_that_cannot_be_written_leave_no_files(config):
    _, first, _ = build(config)
    (file,) = first.samples.folder.glob("packs-*.npz")
    file.unlink()
    file.mkdir()  # in the way of the packs
    with pytest.raises(IsADirectoryError):
        build(config)
    assert list(file.parent.glob(".packs-*")) == []


def test_every_sample_is_in_a_pack_once_in_each_pass(config):
    train, _, _ = build(config, train=4, valid=0)
    batches = build_data_iterator(
        train,
        config=config,
        consumed_samples=0,
        micro_batch_size=1,
        data_parallel_rank=0,
        data_parallel_size=1,
        global_batch_size=2,
    )
    rows = list(batches)
    assert [tuple(row["tokens"].shape) for row in rows] == [(1, 20)] * 4
    assert [tuple(row["max_seqlen"].shape) for row in rows] == [(1,)] * 4
    loss_mask = [int(row["loss_mask"].sum()) for row in rows]
    assert sum(loss_mask[:2]) == sum(loss_mask[2:]) == sum(map(len, ANSWERS))
    assert train.mean_tokens == sum(map(len, ANSWERS)) / 2
    assert train.length_counts == {length: n / 2 for length, n in Counter(map(len, ANSWERS)).items()}
    with pytest.raises(IndexError):
        train[4]


def test_several_packs_in_a_micro_batch_are_rejected_with_an_equivalent(config):
    _, valid, _ = build(config)
    with pytest.raises(ValueError, match=r"2 packs in a micro-batch.*packs of 40 tokens"):
        valid.collate([valid[0], valid[1]])


@pytest.mark.parametrize(
    ("rule_id", "values", "message"),
    [
        ("D70", ({"packed_sequence_size": 4096, "pad_seq_to_mult": 3}, 4096), "pad_seq_to_mult=3"),
        (
            "D73",
            ({"packed_metadata_path": "a.json"},),
            "packed_metadata_path=a.json without packed_train_data_path",
        ),
        ("D124", ({"tokenizer_model_name": "llama"},), "tokenizer_model_name=llama, which has no effect"),
        ("D75", ({}, 8, None, None), "model.decoder_seq_length=8"),
        ("D133", ({}, "*M", {"use_mamba_mem_eff_path": False}), "use_mamba_mem_eff_path=false"),
        ("D122", ({}, "M*", 2), "hybrid_layer_pattern=M* and context_parallel_size=2"),
        ("V047", (None, False, {}, None), "is None"),
    ],
)
def test_other_violations_of_a_rule(rule_id, values, message):
    (rule,) = (rule for rule in RULES if rule.id == rule_id)
    assert message in rule.message(dict(zip(rule.fields, values, strict=False)))
