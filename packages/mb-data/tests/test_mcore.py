import importlib
import json
import logging
import os
import pickle
import re
import sys
from dataclasses import dataclass, fields

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from mb_data import (
    ByteTokenizer,
    DatasetBuildContext,
    GPTDatasetConfig,
    IndexedFormatError,
    IndexedWriter,
    MockGPTDatasetConfig,
    NotEnoughSamplesError,
    SentinelTokenizer,
    TextCorpusConfig,
    TokenizerError,
    build_indexed,
    load_tokenizer,
    prepare_corpus,
)
from mb_data.config import DataloaderConfig
from mb_data.errors import DatasetError, FormatLibraryError
from mb_data.loading.document_parts import document_lengths, document_parts
from mb_data.text.shards.build import build_shards
from mb_data.text.shards.engines import select_engine

mb_host = pytest.importorskip("mb_host", reason="needs the test group")
mb_host.install()
mb_host.quiet()
gpt_dataset = pytest.importorskip("megatron.core.datasets.gpt_dataset", reason="needs the mcore extra")
indexed_dataset = pytest.importorskip("megatron.core.datasets.indexed_dataset")
mcore = pytest.importorskip("mb_data.mcore")
gpt_config = pytest.importorskip("mb_data.megatron.conversion")

CHOSEN = {"reset_position_ids": False, "reset_attention_mask": False, "eod_mask_loss": False}


def build(*, train=20, valid=4, test=0, **values):
    config = GPTDatasetConfig(**({"seq_length": 8, "split": "90,10,0"} | CHOSEN | values))
    context = DatasetBuildContext(
        train_samples=train, valid_samples=valid, test_samples=test, tokenizer=ByteTokenizer()
    )
    return mcore.build_gpt_datasets(config, context)


def rotations(size):
    """Return each rotation of the indices of a dataset."""
    return [[(first + index) % size for index in range(size)] for first in range(size)]


def tokens_of(dataset):
    return [dataset[index]["tokens"].tolist() for index in range(len(dataset))]


class TestFormat:
    DOCUMENTS = ([1, 2, 3], [4], [5, 6])

    @pytest.mark.parametrize("dtype", [np.uint16, np.int32])
    def test_megatrons_builder_writes_the_same_bytes(self, tmp_path, dtype):
        with IndexedWriter(tmp_path / "ours", dtype=dtype) as writer:
            for document in self.DOCUMENTS:
                writer.add_document(document)
        builder = indexed_dataset.IndexedDatasetBuilder(str(tmp_path / "theirs.bin"), dtype=dtype)
        for document in self.DOCUMENTS:
            builder.add_document(torch.tensor(document), [len(document)])
        builder.finalize(str(tmp_path / "theirs.idx"))
        for suffix in ("bin", "idx"):
            assert (tmp_path / f"ours.{suffix}").read_bytes() == (tmp_path / f"theirs.{suffix}").read_bytes()

    def test_megatrons_reader_gives_the_documents_back(self, tmp_path):
        with IndexedWriter(tmp_path / "ours", dtype="uint16") as writer:
            for document in self.DOCUMENTS:
                writer.add_document(document)
        dataset = indexed_dataset.IndexedDataset(str(tmp_path / "ours"))
        assert [document.tolist() for document in dataset] == list(self.DOCUMENTS)
        assert dataset.document_indices.tolist() == [0, 1, 2, 3]


class TestBuild:
    def test_samples_are_shifted_sequences_without_a_mask(self, prefix):
        train, valid, test = build(data_path=prefix)
        sample = train[0]
        assert sorted(sample) == ["labels", "loss_mask", "position_ids", "tokens"]
        assert sample["tokens"][1:].tolist() == sample["labels"][:-1].tolist()
        assert (len(train) >= 20, len(valid) >= 4, test) == (True, True, None)

    def test_a_mask_if_it_is_requested(self, prefix):
        train, _, _ = build(data_path=prefix, skip_getting_attention_mask_from_dataset=False)
        assert train[0]["attention_mask"].shape == (1, 8, 8)

    def test_the_splits_share_no_document(self, prefix):
        train, valid, _ = build(data_path=prefix)
        train_tokens, valid_tokens = ({t for row in tokens_of(d) for t in row} for d in (train, valid))
        assert train_tokens & valid_tokens <= {ByteTokenizer.eod}

    def test_string_list_and_blend_are_the_same_dataset(self, write_pair):
        a = write_pair("a", documents=50)
        b = write_pair("b", documents=50, first=100)
        forms = [
            {"data_path": f"30 {a} 70 {b}"},
            {"data_path": ["30", a, "70", b]},
            {"blend": ([a, b], [30.0, 70.0])},
        ]
        first, *others = (tokens_of(build(**form)[0]) for form in forms)
        assert all(other == first for other in others)
        share = sum(any(100 <= token < ByteTokenizer.eod for token in row) for row in first) / len(first)
        assert 0.6 < share < 0.8

    def test_a_single_prefix_with_a_weight_is_that_prefix(self, prefix):
        assert tokens_of(build(blend=([prefix], [3.0]))[0]) == tokens_of(build(data_path=prefix)[0])

    def test_a_blend_for_each_split(self, write_pair):
        a = write_pair("a", documents=50)
        b = write_pair("b", documents=50, first=100)
        _, valid, test = build(blend_per_split=[([a], None), ([b], None), None], split=None, test=3)
        assert min(token for row in tokens_of(valid) for token in row) >= 100
        assert test is None

    def test_full_validation_is_one_epoch_over_its_split(self, write_pair):
        a, b = write_pair("a", documents=8), write_pair("b", documents=8, first=100)  # 88 tokens each
        parts = {"train": 0, "valid": 1, "split": None, "full_validation": True}
        for blend in ([a], None), ([a, b], None), ([a, b], [9.0, 1.0]):
            rows = tokens_of(build(**parts, blend_per_split=[None, blend, None])[1])
            assert len({tuple(row) for row in rows}) == len(rows) == 10 * len(blend[0])
        assert len(build(**parts | {"split": "0,100,0"}, blend=([a, b], [9.0, 1.0]))[1]) == 20

    def test_the_padding_of_a_partial_sequence_masks_no_other(self, write_pair):
        pairs = [write_pair("a", documents=8), write_pair("b", documents=9, first=100)]  # 88 and 99 tokens
        _, valid, _ = build(
            train=0,
            valid=1,
            split=None,
            full_validation=True,
            blend_per_split=[None, (pairs, None), None],
            drop_last_partial_validation_sequence=False,
        )
        counts = [
            [int(valid[index]["loss_mask"].sum()) for index in order] for order in rotations(len(valid))
        ]
        expected = sorted([*[8] * (87 // 8), 87 % 8, *[8] * (98 // 8), 98 % 8])
        assert all(sorted(each) == expected for each in counts)
        loader = DataLoader(pickle.loads(pickle.dumps(valid)), num_workers=2)  # as workers receive it
        assert sorted(int(batch["loss_mask"].sum()) for batch in loader) == expected

    @pytest.mark.parametrize("pairs", [1, 2])
    def test_a_token_beyond_the_vocabulary_is_named(self, write_pair, tmp_path, pairs):
        good = write_pair("good", documents=20)
        with IndexedWriter(tmp_path / "bad", dtype="uint16") as writer:
            writer.add_document([1] * 30)
            writer.add_document([2, 3, 300, 4] * 7)
        blend = ([str(tmp_path / "bad"), good][:pairs], [1.0] * pairs)
        train, _, _ = build(blend=blend, split="100,0,0", valid=0)
        with pytest.raises(
            IndexedFormatError, match=r"bad\.bin: token 2 of document 1 is 300, .* has 257 entries"
        ):
            [train[index] for index in range(len(train))]
        with pytest.raises(IndexedFormatError) as raised:
            list(DataLoader(train, num_workers=1))
        assert str(raised.value).startswith(f"{tmp_path / 'bad'}.bin: token 2 of document 1 is 300, but")
        assert "Traceback" not in str(raised.value)

    @pytest.mark.parametrize("mapped", [True, False])
    @pytest.mark.parametrize("suffix", [".bin", ".idx"])
    def test_a_file_that_is_cut_short_while_it_is_read_is_named(self, tmp_path, suffix, mapped):
        """A mapped read beyond the end of a file would kill this process (SIGBUS)."""
        with IndexedWriter(tmp_path / "pair", dtype="uint16") as writer:
            for _ in range(2000):
                writer.add_document([1] * 10)
        train, _, _ = build(
            blend=([str(tmp_path / "pair")], None), split="100,0,0", valid=0, mmap_bin_files=mapped
        )
        assert train[0]["tokens"].tolist() == [1] * 8
        file = tmp_path / f"pair{suffix}"
        size = file.stat().st_size
        os.truncate(file, 100)
        message = f"{file}: was cut short from {size} to 100 bytes while it is read"
        with pytest.raises(IndexedFormatError, match=re.escape(message)):
            train[0]
        with pytest.raises(IndexedFormatError, match=re.escape(message)):
            list(DataLoader(train, num_workers=1))

    @pytest.mark.parametrize("names", ["a", "ab"])
    def test_documents_of_indices_that_are_opened_with_the_first_sample(self, write_pair, tmp_path, names):
        blend = [write_pair(name, documents=20) for name in names], None
        values = {"blend": blend, "path_to_cache": str(tmp_path / "cache")}
        opened = build(**values, train=1, valid=0)[0]
        for found in (document_lengths, lambda *sample: list(document_parts(*sample))):
            deferred = build(**values, train=1, valid=0, defer_npy_index_mmap=True)[0]
            assert found(deferred, 0) == found(opened, 0)

    def test_full_validation_with_weights_that_training_needs(self, write_pair):
        pairs = [write_pair(name, documents=20) for name in "ab"]
        with pytest.raises(DatasetError, match=r"full_validation: the blend of 2 prefixes has weights"):
            build(blend=(pairs, [9.0, 1.0]), full_validation=True)

    def test_the_weight_of_a_single_prefix_is_none(self, prefix):
        with_weight, without = (
            [tokens_of(split) for split in build(data_path=path, full_validation=True)[:2]]
            for path in (f"1.0 {prefix}", prefix)
        )
        assert with_weight == without

    def test_splits_of_no_samples_are_none(self, prefix):
        assert build(data_path=prefix, train=0, valid=0) == (None, None, None)

    def test_generated_data_needs_no_file_and_prints_nothing(self, caplog, capfd, recwarn):
        config = MockGPTDatasetConfig(seq_length=8, **CHOSEN)
        context = DatasetBuildContext(
            train_samples=4, valid_samples=2, test_samples=0, tokenizer=ByteTokenizer()
        )
        with caplog.at_level(logging.WARNING):
            train, valid, test = mcore.build_gpt_datasets(config, context)
        assert (train[0]["tokens"].shape, len(valid) >= 2, test) == ((8,), True, None)
        assert (caplog.records, capfd.readouterr().out, recwarn.list) == ([], "", [])

    def test_the_section_is_not_changed(self, prefix):
        config = GPTDatasetConfig(seq_length=8, data_path=prefix, split="1", **CHOSEN)
        mcore.build_gpt_datasets(
            config,
            DatasetBuildContext(train_samples=4, valid_samples=0, test_samples=0, tokenizer=ByteTokenizer()),
        )
        assert config == GPTDatasetConfig(seq_length=8, data_path=prefix, split="1", **CHOSEN)

    @pytest.fixture
    def corpus(self, text_folder, tmp_path):
        pytest.importorskip("tokenizers")
        return TextCorpusConfig(
            seq_length=8,
            sources=[str(text_folder)],
            vocab_size=280,
            cache_dir=str(tmp_path / "cache"),
            validation_fraction=0.2,
            test_fraction=0.0,
        )

    def test_a_text_corpus_is_prepared_and_read(self, corpus):
        context = DatasetBuildContext(train_samples=9, valid_samples=3, test_samples=3)
        train, valid, test = mcore.build_gpt_datasets(corpus, context)
        assert (len(train) >= 9, len(valid) >= 3, test) == (True, True, None)
        assert max(token for row in tokens_of(train) for token in row) < 280

    def test_a_text_corpus_is_tokenized_by_the_tokenizer_that_is_given(self, corpus):
        own = load_tokenizer(prepare_corpus(corpus).tokenizer)
        other = Turned(own)
        assert (other.vocab_size, other.eod) == (own.vocab_size, own.eod)
        first = [
            tokenizer.decode(tokens_of(read(corpus, tokenizer=given))[0])
            for tokenizer, given in (
                (own, own),
                (other, other),
                (other, mcore.as_megatron(other)),
                (other, SentinelTokenizer(other, sentinels=9)),
            )
        ]
        assert set(first) == {first[0]}

    def test_megatrons_tokenizer_cannot_tokenize_a_corpus(self, corpus):
        base = gpt_config.MegatronTokenizerBase
        theirs = type("Theirs", (base,), dict.fromkeys(base.__abstractmethods__))
        with pytest.raises(TokenizerError, match="cannot be tokenized by Megatron's Theirs"):
            read(corpus, tokenizer=theirs(path="", config={}))


class Turned:
    """Tokenizer of the same size and end-of-document id whose other ids are reversed."""

    def __init__(self, own):
        self.own, self.vocab_size, self.eod = own, own.vocab_size, own.eod
        self.fingerprint = f"turned {own.fingerprint}"

    def encode(self, text):
        return self.turned(self.own.encode(text))

    def decode(self, ids):
        return self.own.decode(self.turned(ids))

    def turned(self, ids):
        others = [number for number in range(self.vocab_size) if number != self.eod]
        turned = {self.eod: self.eod, **dict(zip(others, reversed(others), strict=True))}
        return [turned[number] for number in ids]


def read(corpus, *, tokenizer):
    context = DatasetBuildContext(train_samples=9, valid_samples=0, test_samples=0, tokenizer=tokenizer)
    return mcore.build_gpt_datasets(corpus, context)[0]


class TestIndexCache:
    def test_it_is_reused(self, prefix, tmp_path):
        build(data_path=prefix, path_to_cache=str(tmp_path / "cache"))
        times = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*.npy")}
        build(data_path=prefix, path_to_cache=str(tmp_path / "cache"))
        assert {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*.npy")} == times != {}

    def test_data_changed_under_the_same_name_is_indexed_again(self, write_pair):
        prefix = write_pair("pair", documents=100)
        build(data_path=prefix)
        write_pair("pair", documents=50, first=200)
        fresh = write_pair("fresh", documents=50, first=200)
        assert tokens_of(build(data_path=prefix)[0]) == tokens_of(build(data_path=fresh)[0])

    def test_a_setting_that_megatron_leaves_out_of_its_key_counts(self, prefix):
        one, other = (
            build(data_path=prefix, drop_last_partial_validation_sequence=drop, valid=13, seq_length=10)[1]
            for drop in (True, False)
        )
        assert (len(one), len(other)) == (21, 22)

    def test_the_tokenizers_content_is_part_of_its_name(self, prefix, tmp_path):
        build(data_path=prefix, path_to_cache=str(tmp_path / "cache"))
        described = [json.loads(path.read_text()) for path in (tmp_path / "cache").rglob("*description.txt")]
        assert {entry["tokenizer"]["fingerprint"] for entry in described} == {"bytes"}

    def test_a_folder_that_cannot_be_created_is_named(self, prefix):
        with pytest.raises(PermissionError, match=r"dataset\.path_to_cache"):
            build(data_path=prefix, path_to_cache=f"{prefix}.bin")


class TestRefused:
    def test_a_split_without_documents(self, write_pair):
        prefix = write_pair("pair", documents=3)
        with pytest.raises(NotEnoughSamplesError, match="the valid split has no tokens"):
            build(data_path=prefix, split="99,1,0")

    @pytest.mark.parametrize(("partial", "shortest"), [(False, 9), (True, 2)])
    def test_a_part_of_an_unweighted_blend_that_is_shorter_than_a_sample(self, tmp_path, partial, shortest):
        values = {"drop_last_partial_validation_sequence": not partial, "split": None}
        for tokens in (40, shortest, shortest - 1):
            with IndexedWriter(tmp_path / str(tokens), dtype=np.uint16) as writer:
                writer.add_document(range(tokens))
        blend = [str(tmp_path / "40"), str(tmp_path / str(shortest))], None
        build(train=0, valid=1, blend_per_split=[None, blend, None], **values)
        blend[0][1] = str(tmp_path / str(shortest - 1))
        with pytest.raises(NotEnoughSamplesError, match=f"the valid split has {shortest - 1} tokens"):
            build(train=0, valid=1, blend_per_split=[None, blend, None], **values)

    def test_a_blend_of_which_one_part_is_drawn_beyond_the_surplus(self, tmp_path):
        prefixes = [str(tmp_path / str(number)) for number in range(8)]
        for prefix in prefixes:
            with IndexedWriter(prefix, dtype=np.uint16) as writer:
                writer.add_document(range(9))  # one sample
        # each of 7 parts takes at least one sample, so that the blend has 17, and 16.9 of the first part
        values = {
            "blend_per_split": [(prefixes, [1000.0] + [1.0] * 7), None, None],
            "split": None,
            "valid": 0,
        }
        with pytest.raises(
            NotEnoughSamplesError, match=r"dataset.mid_level_dataset_surplus: 0.005 .* in excess of"
        ):
            build(train=10, **values)
        assert len(build(train=10, mid_level_dataset_surplus=1.0, **values)[0]) == 17

    def test_more_samples_than_an_unweighted_blend_has(self, write_pair):
        a, b = (write_pair(name, documents=20) for name in "ab")
        with pytest.raises(NotEnoughSamplesError, match="that the run needs"):
            build(data_path=f"{a} {b}", train=1000)

    @pytest.mark.parametrize(
        ("dtype", "counts", "valid"),
        [
            (np.uint16, [2, 3], True),
            (np.int32, [2, 3], False),  # Megatron reads uint16 for this vocabulary
            (np.uint16, [1, 2], False),
            (np.uint16, None, False),
        ],
    )
    def test_known_counts_that_are_not_those_of_the_index(self, tmp_path, dtype, counts, valid):
        with IndexedWriter(tmp_path / "pair", dtype=dtype) as writer:
            writer.add_document(range(40))
            writer.add_document(range(40, 80))
        prefix = str(tmp_path / "pair")
        known = {"other": [1, 2]} | ({} if counts is None else {prefix: counts})
        if valid:
            train = build(data_path=prefix, split="1", valid=0, sequences_per_dataset=known)[0]
            assert (train[0]["labels"] - train[0]["tokens"]).tolist() == [1] * 8
            return
        with pytest.raises(
            IndexedFormatError, match=r"dataset.sequences_per_dataset: .* wrong tokens would be read"
        ):
            build(data_path=prefix, split="1", valid=0, sequences_per_dataset=known)

    def test_no_tokenizer(self, prefix):
        config = GPTDatasetConfig(seq_length=8, data_path=prefix, split="1", **CHOSEN)
        with pytest.raises(DatasetError, match="no tokenizer"):
            mcore.build_gpt_datasets(
                config, DatasetBuildContext(train_samples=1, valid_samples=0, test_samples=0)
            )

    def test_a_setting_that_megatron_does_not_have(self):
        @dataclass
        class OldMegatronConfig:
            random_seed: int
            sequence_length: int

        config = GPTDatasetConfig(seq_length=8, inter_document_masking=True)
        with pytest.raises(DatasetError, match=r"dataset\.inter_document_masking"):
            gpt_config.to_megatron(config, tokenizer=None, path_to_cache=None, target=OldMegatronConfig)


def test_the_tokenizer_in_megatrons_shape():
    tokenizer = mcore.as_megatron(ByteTokenizer())
    assert tokenizer.detokenize(tokenizer.tokenize("text")) == "text"
    assert (tokenizer.eod, tokenizer.pad, tokenizer.vocab_size) == (256, -1, 257)
    assert (tokenizer.vocab["a"], tokenizer.unique_identifiers["fingerprint"]) == (97, "bytes")
    with pytest.raises(NotImplementedError, match="no chat template"):
        tokenizer.apply_chat_template()


def test_our_fields_are_megatrons():
    """Differences: fields of the loader, paths, fields that only finalize() uses, and an additional default."""
    theirs = {field.name: field for field in fields(gpt_dataset.GPTDatasetConfig)}
    ours = {field.name: field for field in fields(GPTDatasetConfig)}
    loader = {field.name for field in fields(DataloaderConfig)}
    assert theirs.keys() - ours.keys() == {"sequence_length"}
    assert ours.keys() - theirs.keys() - loader == {
        "seq_length",
        "data_path",
        "skip_getting_attention_mask_from_dataset",
        "per_dataset_sequences_path",
    }
    different = {name for name in ours.keys() & theirs.keys() if ours[name].default != theirs[name].default}
    assert different == {"random_seed"}


class TestShards:
    """A sharded data set is trained on like the pair with the same documents."""

    @pytest.fixture
    def prefixes(self, tmp_path):
        lines = tmp_path / "a.jsonl"
        lines.write_text(
            "".join(f'{{"text": "{"text of a document " * (number % 4)}{number}"}}\n' for number in range(80))
        )
        build_indexed([lines], tokenizer=ByteTokenizer(), prefix=tmp_path / "pair")
        engine = select_engine("local", workers=1)
        for name, size in (("few", 2000), ("many", 150)):
            values = {"tokenizer": "ByteTokenizer", "engine": engine, "shard_bytes": size}
            build_shards([lines], prefix=str(tmp_path / name), **values)
        return [str(tmp_path / name) for name in ("pair", "few", "many")]

    def test_the_samples_are_those_of_the_pair(self, prefixes, tmp_path):
        samples = []
        for prefix in prefixes:
            train, valid, _ = build(data_path=prefix, path_to_cache=str(tmp_path / "cache"))
            samples.append([tokens_of(train), tokens_of(valid)])
            again = pickle.loads(pickle.dumps(train))
            assert tokens_of(again) == tokens_of(train)
        assert samples[0] == samples[1] == samples[2]

    def test_workers_of_a_loader_read_shards(self, prefixes, tmp_path):
        train, _, _ = build(data_path=prefixes[2], path_to_cache=str(tmp_path / "cache"))
        loader = DataLoader(train, batch_size=4, num_workers=2, shuffle=False)
        read = [row for batch in loader for row in batch["tokens"].tolist()]
        assert read == tokens_of(train)

    def test_a_shard_that_is_cut_short_is_named_before_it_is_read(self, prefixes, tmp_path):
        train, _, _ = build(data_path=prefixes[2], path_to_cache=str(tmp_path / "cache"))
        tokens_of(train)
        shard = tmp_path / "many.shards" / "shard-00003.bin"
        os.truncate(shard, shard.stat().st_size // 2)
        with pytest.raises(IndexedFormatError, match=r"shard-00003\.bin: was cut short from"):
            tokens_of(train)

    def test_a_blend_of_pairs_and_shards_starts_again_from_its_record(self, prefixes, tmp_path):
        values = {
            "data_path": ["30", prefixes[0], "70", prefixes[2]],
            "path_to_cache": str(tmp_path / "cache"),
        }
        first = tokens_of(build(**values)[0])
        assert tokens_of(build(**values)[0]) == first

    def test_shards_that_were_built_again_are_other_data(self, prefixes, tmp_path):
        values = {"data_path": prefixes[2], "path_to_cache": str(tmp_path / "cache")}
        build(**values)
        folders = len(list((tmp_path / "cache").iterdir()))
        lines = tmp_path / "a.jsonl"
        lines.write_text(lines.read_text() + '{"text": "more"}\n')
        engine = select_engine("local", workers=1)
        build_shards([lines], prefix=prefixes[2], tokenizer="ByteTokenizer", engine=engine, shard_bytes=150)
        build(**values)
        assert len(list((tmp_path / "cache").iterdir())) == folders + 1


class TestShardsInS3:
    """Shards in a bucket of moto, which answers boto3 in this process and in those that are forked from it."""

    @pytest.fixture
    def bucket(self, monkeypatch):
        moto, boto3 = pytest.importorskip("moto"), pytest.importorskip("boto3")
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "test")
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
        s3 = importlib.import_module("mb_data.text.shards.s3")
        monkeypatch.setattr(s3, "_clients", {})
        with moto.mock_aws():
            client = boto3.client("s3")
            client.create_bucket(Bucket="bucket")
            yield client

    @pytest.fixture
    def lines(self, tmp_path):
        path = tmp_path / "a.jsonl"
        path.write_text(
            "".join(f'{{"text": "{"text of a document " * (number % 4)}{number}"}}\n' for number in range(80))
        )
        return path

    def upload(self, bucket, lines, folder, *, name="web"):
        """Build shards, and copy them to the bucket."""
        engine = select_engine("local", workers=1)
        values = {"tokenizer": "ByteTokenizer", "engine": engine, "shard_bytes": 500}
        build_shards([lines], prefix=str(folder / name), **values)
        for path in [folder / f"{name}.idx", *(folder / f"{name}.shards").iterdir()]:
            bucket.upload_file(str(path), "bucket", f"tokens/{path.relative_to(folder)}")

    def read(self, folder, *, prefix="s3://bucket/tokens/web", **values):
        return build(
            data_path=prefix,
            path_to_cache=str(folder / "cache"),
            object_storage_cache_path=str(folder / "index"),
            mmap_bin_files=False,
            **values,
        )

    def test_the_samples_are_those_of_the_pair_on_disk(self, bucket, lines, tmp_path):
        self.upload(bucket, lines, tmp_path)
        build_indexed([lines], tokenizer=ByteTokenizer(), prefix=tmp_path / "pair")
        pair = build(data_path=str(tmp_path / "pair"), path_to_cache=str(tmp_path / "cache"))
        train, valid, _ = self.read(tmp_path)
        assert (tokens_of(train), tokens_of(valid)) == (tokens_of(pair[0]), tokens_of(pair[1]))
        assert tokens_of(pickle.loads(pickle.dumps(train))) == tokens_of(train)
        loader = DataLoader(train, batch_size=4, num_workers=2, shuffle=False, multiprocessing_context="fork")
        assert [row for batch in loader for row in batch["tokens"].tolist()] == tokens_of(train)

    def test_other_shards_at_the_same_url_are_other_data(self, bucket, lines, tmp_path):
        self.upload(bucket, lines, tmp_path)
        before = tokens_of(self.read(tmp_path)[0])
        lines.write_text(lines.read_text().replace("text of", "line of"))  # as many bytes and tokens
        self.upload(bucket, lines, tmp_path)
        build_indexed([lines], tokenizer=ByteTokenizer(), prefix=tmp_path / "pair")
        expected = tokens_of(
            build(data_path=str(tmp_path / "pair"), path_to_cache=str(tmp_path / "cache"))[0]
        )
        found = self.read(tmp_path)[0]
        assert tokens_of(found) == expected != before
        assert len(list((tmp_path / "index" / "bucket" / "tokens").glob("web.*"))) == 2

    def test_an_index_of_another_build_is_rejected(self, bucket, lines, tmp_path):
        self.upload(bucket, lines, tmp_path)
        index = bucket.get_object(Bucket="bucket", Key="tokens/web.idx")["Body"].read()
        lines.write_text(lines.read_text() + '{"text": "more"}\n')
        self.upload(bucket, lines, tmp_path)
        bucket.put_object(Bucket="bucket", Key="tokens/web.idx", Body=index)
        with pytest.raises(
            IndexedFormatError, match=r"web\.idx: has 80 documents .* have 81 in .* of two builds"
        ):
            self.read(tmp_path)

    def test_a_shard_that_was_cut_short_is_named(self, bucket, lines, tmp_path):
        self.upload(bucket, lines, tmp_path)
        train, _, _ = self.read(tmp_path)
        for shard in range(len(list((tmp_path / "web.shards").glob("*.bin")))):
            key = f"tokens/web.shards/shard-{shard:05}.bin"
            content = bucket.get_object(Bucket="bucket", Key=key)["Body"].read()
            bucket.put_object(
                Bucket="bucket", Key=key, Body=content[:3]
            )  # of an odd length, and mostly before the range
        with pytest.raises(
            IndexedFormatError, match=r"s3://bucket/tokens/web\.shards/shard-0000\d\.bin: has \d bytes"
        ):
            tokens_of(train)

    def test_a_damaged_manifest_is_named(self, bucket, lines, tmp_path):
        self.upload(bucket, lines, tmp_path)
        bucket.put_object(Bucket="bucket", Key="tokens/web.shards/manifest.json", Body=b"{")
        with pytest.raises(IndexedFormatError, match=r"web\.shards/manifest\.json: is not the manifest"):
            self.read(tmp_path)

    def test_a_pair_is_read_by_megatron_core(self, bucket, lines, tmp_path):
        build_indexed([lines], tokenizer=ByteTokenizer(), prefix=tmp_path / "pair")
        for suffix in ("bin", "idx"):
            bucket.upload_file(str(tmp_path / f"pair.{suffix}"), "bucket", f"pair.{suffix}")
        pair = build(data_path=str(tmp_path / "pair"), path_to_cache=str(tmp_path / "cache"))
        assert tokens_of(self.read(tmp_path, prefix="s3://bucket/pair")[0]) == tokens_of(pair[0])

    def test_without_boto3(self, monkeypatch, tmp_path):
        monkeypatch.setattr(importlib.import_module("mb_data.text.shards.s3"), "_clients", {})
        monkeypatch.setitem(sys.modules, "boto3", None)
        with pytest.raises(FormatLibraryError, match="the library boto3 is not installed"):
            self.read(tmp_path)
