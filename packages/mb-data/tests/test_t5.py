"""Span corruption: no token is lost, no sequence is too long, and a sample depends on its index only."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mb_data import (
    ByteTokenizer,
    ConfigError,
    DataloaderConfig,
    DatasetBuildContext,
    IndexedFormatError,
    NullTokenizer,
    SentinelTokenizer,
    T5Dataset,
    T5DatasetConfig,
    T5TextCorpusConfig,
    TokenizerConfig,
    TokenizerError,
    build_data_iterator,
    corrupt_spans,
    fit_span_sizes,
    load_tokenizer,
    prepare_corpus,
)
from mb_data.errors import DatasetError

BYTES = SentinelTokenizer(ByteTokenizer(), sentinels=100)
SENTINEL, END = BYTES.sentinels.start, BYTES.eod


def restored(encoder, decoder, *, first=SENTINEL):
    """Replace the sentinels of the encoder by the spans of the decoder. Both sequences end with an end token."""
    spans, found = {}, []
    for token in decoder[:-1]:
        if token >= first:
            spans[token] = []
        else:
            spans[[*spans][-1]].append(token)
    for token in encoder[:-1]:
        found += spans[token] if token >= first else [token]
    return found


class Texts:
    def __init__(self, number, length):
        self.samples = [{"tokens": torch.arange(n, n + length) % 250} for n in range(number)]

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        return self.samples[index]


def pairs(*, number=8, seq_length=32, decoder_seq_length=12, seed=1, sentinels=BYTES.sentinels):
    sizes = fit_span_sizes(seq_length, noise_density=0.15, mean_span_length=3.0)
    return T5Dataset(
        Texts(number, sizes.tokens),
        sizes=sizes,
        seq_length=seq_length,
        decoder_seq_length=decoder_seq_length,
        sentinels=sentinels,
        end=END,
        seed=seed,
    )


class TestSizes:
    def test_an_encoder_of_512_tokens_has_the_sizes_of_the_paper(self):
        sizes = fit_span_sizes(512, noise_density=0.15, mean_span_length=3.0)
        assert (sizes.tokens, sizes.encoder_tokens, sizes.decoder_tokens) == (568, 512, 114)

    @given(st.integers(4, 2000), st.floats(0.01, 0.45), st.floats(1, 20))
    def test_the_encoder_is_full_if_less_than_half_is_noise(self, seq_length, density, span):
        sizes = fit_span_sizes(seq_length, noise_density=density, mean_span_length=span)
        assert sizes.encoder_tokens == seq_length
        assert 1 <= sizes.spans <= min(sizes.noise_tokens, sizes.tokens - sizes.noise_tokens)

    @given(st.integers(4, 2000), st.floats(0.45, 0.99), st.floats(1, 20))
    def test_one_token_of_padding_may_remain_if_half_or_more_is_noise(self, seq_length, density, span):
        sizes = fit_span_sizes(seq_length, noise_density=density, mean_span_length=span)
        assert seq_length - sizes.encoder_tokens in (0, 1)

    @pytest.mark.parametrize(("length", "density", "span"), [(3, 0.15, 3), (512, 1.0, 3), (512, 0.15, 0.5)])
    def test_invalid_sizes_are_rejected(self, length, density, span):
        with pytest.raises(ValueError, match="an encoder reads 4 or more"):
            fit_span_sizes(length, noise_density=density, mean_span_length=span)


class TestSpans:
    @given(st.integers(4, 300), st.floats(0.01, 0.9), st.floats(1, 10), st.integers(0, 2**32))
    @settings(max_examples=50)
    def test_every_text_is_restored(self, seq_length, density, span, seed):
        sizes = fit_span_sizes(seq_length, noise_density=density, mean_span_length=span)
        text = np.random.default_rng(seed).integers(0, 256, sizes.tokens)
        pair = corrupt_spans(
            text,
            sizes,
            sentinels=range(SENTINEL, SENTINEL + sizes.spans),
            end=END,
            random=np.random.default_rng(seed),
        )
        assert restored(pair.encoder.tolist(), pair.labels.tolist()) == text.tolist()
        assert (pair.encoder.size, pair.labels.size) == (sizes.encoder_tokens, sizes.decoder_tokens)

    def test_a_text_of_another_length_is_rejected(self):
        sizes = fit_span_sizes(32, noise_density=0.15, mean_span_length=3.0)
        with pytest.raises(ValueError, match="a text of 33 tokens, but the sizes are for 34"):
            corrupt_spans(np.zeros(33, int), sizes, sentinels=BYTES.sentinels, end=END, random=np.random)

    def test_every_position_but_the_first_is_noise_about_equally_often(self):
        sizes = fit_span_sizes(32, noise_density=0.15, mean_span_length=3.0)
        kept = np.zeros(sizes.tokens, int)
        for seed in range(2000):
            random = np.random.default_rng(seed)
            pair = corrupt_spans(
                np.arange(sizes.tokens), sizes, sentinels=range(100, 110), end=99, random=random
            )
            kept[pair.encoder[pair.encoder < 99]] += 1
        assert (kept[0], kept[-1]) == (2000, 0)
        assert kept[8:-8].min() > 1600
        assert kept[8:-8].max() < 1900


class TestDataset:
    def test_a_pair_with_its_padding(self):
        sample = pairs()[3]
        shapes = {name: (tuple(value.shape), value.dtype) for name, value in sample.items()}
        assert shapes == {
            "text_enc": ((32,), torch.int64),
            "enc_mask": ((32,), torch.int64),
            "text_dec": ((12,), torch.int64),
            "labels": ((12,), torch.int64),
            "loss_mask": ((12,), torch.float32),
        }
        assert sample["enc_mask"].sum() == 32
        assert sample["loss_mask"].tolist() == [1.0] * 8 + [0.0] * 4
        assert sample["labels"][7:].tolist() == [END] * 5
        assert sample["text_dec"].tolist() == [END, *sample["labels"][:7].tolist(), *[END] * 4]
        assert restored(sample["text_enc"].tolist(), sample["labels"][:8].tolist()) == list(range(3, 37))

    def test_a_sample_depends_on_its_index_and_the_seed_only(self):
        one, two, other = pairs(), pairs(number=5), pairs(seed=2)
        backwards = [two[index] for index in reversed(range(5))][::-1]
        assert [list(map(str, one[index].values())) for index in range(5)] == [
            list(map(str, sample.values())) for sample in backwards
        ]
        assert not torch.equal(one[0]["text_enc"], other[0]["text_enc"])

    @given(st.integers(0, 7), st.sampled_from([1, 2, 4]))
    @settings(max_examples=10, deadline=None)
    def test_resuming_with_other_ranks_equals_an_uninterrupted_run(self, steps, ranks):
        def read(consumed, ranks):
            iterators = [
                build_data_iterator(
                    pairs(number=32),
                    config=DataloaderConfig(num_workers=0),
                    consumed_samples=consumed,
                    micro_batch_size=4 // ranks,
                    data_parallel_rank=rank,
                    data_parallel_size=ranks,
                )
                for rank in range(ranks)
            ]
            return [
                row
                for step in zip(*iterators, strict=True)
                for batch in step
                for row in batch["labels"].tolist()
            ]

        assert read(4 * steps, ranks) == read(0, 1)[4 * steps :]

    @pytest.mark.parametrize(
        "lengths", [{"decoder_seq_length": 7}, {"seq_length": 4000, "decoder_seq_length": 900}]
    )
    def test_sequences_that_are_too_short_are_rejected(self, lengths):
        with pytest.raises(DatasetError, match="nothing is truncated"):
            pairs(**lengths)

    def test_a_token_that_could_be_a_sentinel_is_rejected(self):
        dataset = pairs(sentinels=range(35, 135))
        assert dataset[1]["text_enc"].max() >= 35
        with pytest.raises(TokenizerError, match="text 2 has token 35, but sentinels begin at 35"):
            dataset[2]


class TestTokenizer:
    def test_sentinels_follow_the_entries_of_the_tokenizer(self):
        assert (BYTES.vocab_size, BYTES.sentinels, BYTES.eod) == (357, range(257, 357), 256)
        assert BYTES.decode([104, 105, 257, 258, 33, 256]) == "hi<extra_id_0><extra_id_1>!"
        assert BYTES.encode("<extra_id_0>") == list(b"<extra_id_0>")
        assert BYTES.fingerprint == "bytes-sentinels-100"

    def test_a_huge_number_of_sentinels_takes_no_memory(self):
        many = SentinelTokenizer(ByteTokenizer(), sentinels=10**12)
        assert many.vocab_size == 10**12 + 257
        assert many.decode([104, 257 + 10**11]) == "h<extra_id_100000000000>"

    def test_a_section_sets_their_number(self):
        loaded = load_tokenizer(TokenizerConfig(tokenizer_type="ByteTokenizer", vocab_extra_ids=3))
        assert loaded.sentinels == range(257, 260)
        assert load_tokenizer(TokenizerConfig(tokenizer_type="ByteTokenizer")).vocab_size == 257


class TestSection:
    @pytest.mark.parametrize(
        ("values", "rule"),
        [
            ({"decoder_seq_length": 113}, "D52"),
            ({"noise_density": 0.0}, "D51"),
            ({"eod_mask_loss": True}, "D56"),
            ({"inter_document_masking": True}, "D58"),
        ],
    )
    def test_invalid_values_are_rejected(self, values, rule):
        with pytest.raises(ConfigError, match=rule):
            T5DatasetConfig(seq_length=512, **values).finalize()

    def test_defaults_are_valid(self):
        T5DatasetConfig(seq_length=512).finalize()
        T5TextCorpusConfig(seq_length=512).finalize()


class TestBuild:
    @pytest.fixture
    def build(self):
        mb_host = pytest.importorskip("mb_host", reason="needs the test group")
        mb_host.install()
        mb_host.quiet()
        return pytest.importorskip("mb_data.t5.build", reason="needs the mcore extra").build_t5_datasets

    @staticmethod
    def context(tokenizer=BYTES, **samples):
        counts = {"train_samples": 20, "valid_samples": 4, "test_samples": 0} | samples
        return DatasetBuildContext(**counts, tokenizer=tokenizer)

    def test_pairs_from_indexed_data_restore_its_texts(self, build, prefix):
        config = T5DatasetConfig(seq_length=32, decoder_seq_length=8, data_path=prefix, split="90,10,0")
        train, valid, test = build(config, self.context())
        assert (len(train) >= 20, len(valid) >= 4, test, config.blend) == (True, True, None, None)
        text = restored(train[5]["text_enc"].tolist(), train[5]["labels"].tolist())
        assert len(text) == config.sizes.tokens
        ends = [position for position, token in enumerate(text) if token == END]
        assert set(np.diff(ends)) == {11}

    def test_generated_tokens(self, build):
        train, _, _ = build(T5DatasetConfig(seq_length=32, split="1,0,0"), self.context(valid_samples=0))
        assert train[0]["text_enc"].shape == (32,)

    @pytest.fixture
    def corpus(self, text_folder, tmp_path):
        pytest.importorskip("tokenizers", reason="needs the tokenizers extra")
        return T5TextCorpusConfig(
            seq_length=32, sources=[str(text_folder)], vocab_size=280, cache_dir=str(tmp_path / "cache")
        )

    def test_text_files_are_restored_from_samples(self, build, corpus, text_folder):
        own = load_tokenizer(prepare_corpus(corpus).tokenizer)
        splits = build(corpus, self.context(SentinelTokenizer(own, sentinels=100), test_samples=2))
        files = {path.read_text() for path in text_folder.glob("*/*.txt")}
        for sample in (split[0] for split in splits):
            encoder, decoder = (sample[name].tolist() for name in ("text_enc", "labels"))
            text = restored(encoder, decoder[: int(sample["loss_mask"].sum())], first=280)
            pieces = own.decode(text).split("<|endoftext|>")
            assert len(text) == corpus.sizes.tokens
            assert all(any(piece in file for file in files) for piece in pieces)

    def test_a_corpus_is_tokenized_by_the_tokenizer_with_the_sentinels(self, build, corpus):
        prepare_corpus(corpus)
        train, _, _ = build(corpus, self.context())
        encoder, decoder = (train[0][name].tolist() for name in ("text_enc", "labels"))
        text = restored(encoder, decoder[: int(train[0]["loss_mask"].sum())])
        assert "three" in ByteTokenizer().decode(text)

    def test_a_file_of_a_larger_vocabulary_is_rejected(self, build, prefix):
        small = SentinelTokenizer(NullTokenizer(50), sentinels=100)
        config = T5DatasetConfig(seq_length=32, data_path=prefix, split="1,0,0")
        train, _, _ = build(config, self.context(small, valid_samples=0))
        with pytest.raises(
            IndexedFormatError, match=r"pair\.bin: token 10 of document \d+ is 256, .* 50 entries"
        ):
            train[0]

    @pytest.mark.parametrize("section", [T5DatasetConfig, T5TextCorpusConfig])
    def test_no_tokenizer_is_rejected(self, build, section):
        with pytest.raises(TokenizerError, match="dataset: no tokenizer"):
            build(section(seq_length=32), self.context(None))

    def test_a_tokenizer_without_sentinels_is_rejected(self, build):
        with pytest.raises(TokenizerError, match="a ByteTokenizer has no sentinels"):
            build(T5DatasetConfig(seq_length=32, split="1,0,0"), self.context(ByteTokenizer()))
