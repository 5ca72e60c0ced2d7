"""Fill-in-the-middle data."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mb_data import (
    ByteTokenizer,
    DatasetBuildContext,
    ExtendedTokenizer,
    FIMTextCorpusConfig,
    FIMTransform,
    GPTDatasetConfig,
    GPTFIMDatasetConfig,
    TokenizerConfig,
    TokenizerError,
    build_indexed,
    find_fim_tokens,
    load_tokenizer,
)
from mb_data.fim.config import FillInTheMiddleOptions

NAMES = {"prefix": "<pre>", "middle": "<mid>", "suffix": "<suf>"}
TOKENIZER = ExtendedTokenizer(ByteTokenizer(), [*NAMES.values(), "<file>"])
PRE, MID, SUF, FILE = range(257, 261)
EOD = ByteTokenizer.eod


def section(**values):
    return FillInTheMiddleOptions(
        **{"fim_rate": 1.0, "fim_spm_rate": 0.0, "fim_extra_tokens": NAMES} | values
    )


def transform(tokenizer=TOKENIZER, **values):
    wanted = section(**values)
    return FIMTransform(tokenizer, wanted, find_fim_tokens(tokenizer, wanted))


def rewrite(tokens, *, seed=0, **values):
    return transform(**values)(np.array(tokens, np.int64), np.random.default_rng(seed)).tolist()


def put_back(tokens):
    """Undo the transformation of a complete document in the obvious way: split it at the special tokens."""
    text = bytes(token for token in tokens if token < 256).decode(errors="replace")
    if PRE not in tokens:
        return text
    parts = {}
    for token in tokens:
        if token in (PRE, MID, SUF):
            name = token
            parts[name] = b""
        else:
            parts[name] += bytes([token])
    if tokens[:2] == [PRE, SUF]:  # suffix first: prefix and middle follow each other
        return (parts[MID] + parts[SUF]).decode(errors="replace")
    return (parts[PRE] + parts[MID] + parts[SUF]).decode(errors="replace")


def documents(tokens):
    cut = [position for position, token in enumerate(tokens) if token == EOD]
    return [
        tokens[start:end]
        for start, end in zip([0, *(position + 1 for position in cut)], [*cut, len(tokens)], strict=True)
    ]


class TestFiller:
    @pytest.mark.parametrize(("spm_rate", "head"), [(0.0, [PRE]), (1.0, [PRE, SUF])])
    def test_the_parts_are_those_of_the_text(self, spm_rate, head):
        text = "to be, or not to be: heiße 漢字"
        room = [EOD] * 20  # documents without text, whose positions the special tokens take
        rewritten = rewrite([*text.encode(), EOD, *room], fim_spm_rate=spm_rate)
        assert rewritten[: len(head)] == head
        assert put_back(documents(rewritten)[0]) == text

    @settings(max_examples=60, deadline=None)
    @given(
        texts=st.lists(st.text(max_size=30), min_size=1, max_size=6),
        rate=st.sampled_from([0.0, 0.5, 1.0]),
        spm_rate=st.sampled_from([0.0, 0.5, 1.0]),
        seed=st.integers(0, 9),
    )
    def test_documents_keep_their_order_and_only_the_last_is_truncated(self, texts, rate, spm_rate, seed):
        sample = [token for text in texts for token in (*text.encode(), EOD)][:80]
        rewritten = rewrite(sample, fim_rate=rate, fim_spm_rate=spm_rate, seed=seed)
        assert len(sample) - 3 <= len(rewritten) <= len(sample)
        found = [put_back(document) for document in documents(rewritten)]
        assert found[:-1] == [put_back(document) for document in documents(sample)][: len(found) - 1]

    @settings(max_examples=60, deadline=None)
    @given(size=st.integers(4, 60), seed=st.integers(0, 99), spm_rate=st.sampled_from([0.0, 1.0]))
    def test_with_rate_one_every_sample_has_the_special_tokens_once(self, size, seed, spm_rate):
        sample = list(("漢字 and words " * 9).encode()[:size])
        rewritten = rewrite(sample, seed=seed, fim_spm_rate=spm_rate)
        assert [rewritten.count(mark) for mark in (PRE, MID, SUF)] == [1, 1, 1]

    def test_with_rate_zero_nothing_changes(self):
        sample = [*b"to be", EOD, *b"or not"]
        assert rewrite(sample, fim_rate=0.0) == sample

    def test_rates_are_fractions(self):
        sample = [*b"abcdefghij", EOD] * 400
        rewritten = rewrite(sample, fim_rate=0.5, fim_spm_rate=0.25)
        parts = documents(rewritten)
        chosen = [document for document in parts if PRE in document]
        suffix_first = [document for document in chosen if document[1] == SUF and document[2] != MID]
        assert 0.4 < len(chosen) / len(parts) < 0.6
        assert 0.1 < len(suffix_first) / len(chosen) < 0.4

    def test_a_text_with_the_excluded_prefix_is_not_rewritten(self):
        sample = [*b"# license", EOD, *b"text of a file", EOD, *[EOD] * 9]
        rewritten = documents(rewrite(sample, fim_no_prefix="# lic"))
        assert (rewritten[0], PRE in rewritten[1]) == ([*b"# license"], True)

    def test_fragments_are_split_separately(self):
        sample = [*b"one file", FILE, *b"another", FILE, *b"third", EOD, *[EOD] * 20]
        rewritten = rewrite(sample, fim_split_sample="<file>", fim_fragment_rate=1.0)
        first = documents(rewritten)[0]
        assert (first.count(FILE), first.count(PRE)) == (2, 3)
        cut = [position for position, token in enumerate(first) if token == FILE]
        assert put_back(first[: cut[0]]) == "one file"
        kept = rewrite(sample, fim_split_sample="<file>", fim_fragment_rate=0.0)
        assert kept == sample

    def test_no_token_changes_if_a_sample_starts_within_a_character(self):
        sample = "漢字漢字".encode()[1:]
        rewritten = rewrite([*sample, EOD, *[EOD] * 9])
        kept = [token for token in documents(rewritten)[0] if token < 256]
        assert sorted(kept) == sorted(sample)


class TestTokens:
    def test_missing_ones_are_named(self):
        with pytest.raises(
            TokenizerError, match=r"the tokenizer has no <mid>, <file>.*tokenizer\.special_tokens"
        ):
            find_fim_tokens(
                ExtendedTokenizer(ByteTokenizer(), ["<pre>", "<suf>"]), section(fim_split_sample="<file>")
            )

    def test_missing_names(self):
        with pytest.raises(TokenizerError, match="has no such tokens"):
            find_fim_tokens(TOKENIZER, section(fim_extra_tokens=None))

    def test_end_and_padding_are_the_tokenizers_unless_they_are_named(self):
        own = find_fim_tokens(TOKENIZER, section())
        named = find_fim_tokens(
            TOKENIZER, section(fim_extra_tokens=NAMES | {"pad": "<file>", "eod": "<file>"})
        )
        assert ((own.end, own.pad), (named.end, named.pad)) == ((EOD, EOD), (FILE, FILE))

    def test_a_tokenizer_that_adds_tokens_around_texts(self):
        class Begins(ByteTokenizer):
            def encode(self, text):
                return [0, *super().encode(text)]

        with pytest.raises(TokenizerError, match="adds special tokens around each text"):
            find_fim_tokens(ExtendedTokenizer(Begins(), [*NAMES.values()]), section())


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    pytest.importorskip("megatron.core.datasets.gpt_dataset", reason="needs the mcore extra")
    folder = tmp_path_factory.mktemp("fim")
    for number in range(40):
        (folder / f"{number:02}.txt").write_text(f"document {number}: " + "to be or not " * (number % 5))
    build_indexed([folder], tokenizer=TOKENIZER, prefix=folder / "play")
    return folder / "play"


class TestDatasets:
    def build(self, prefix, kind=GPTFIMDatasetConfig, **values):
        from mb_data import build_fim_datasets, build_gpt_datasets

        settings = {"reset_position_ids": False, "reset_attention_mask": False, "eod_mask_loss": False}
        fim = {"fim_rate": 1.0, "fim_spm_rate": 0.5, "fim_extra_tokens": NAMES}
        fim = fim if kind is GPTFIMDatasetConfig else {}
        config = kind(seq_length=64, data_path=str(prefix), split="90,10,0", **settings | fim | values)
        build = build_fim_datasets if kind is GPTFIMDatasetConfig else build_gpt_datasets
        counts = DatasetBuildContext(train_samples=20, valid_samples=4, test_samples=0, tokenizer=TOKENIZER)
        return build(config, counts)

    def test_every_sample_has_the_special_tokens_and_its_length(self, prefix):
        train, valid, test = self.build(prefix)
        assert (len(train) >= 20, len(valid) >= 4, test) == (True, True, None)
        for number in range(len(train)):
            sample = train[number]
            assert {name: tuple(value.shape) for name, value in sample.items()} == dict.fromkeys(
                ("tokens", "labels", "loss_mask", "position_ids"), (64,)
            )
            assert {PRE, MID, SUF} <= set(sample["tokens"].tolist())
            assert (sample["tokens"][1:] == sample["labels"][:-1]).all()

    def test_the_same_sample_in_any_order_and_another_by_another_seed(self, prefix):
        first, again, other = (self.build(prefix, random_seed=seed)[0] for seed in (1, 1, 2))
        forward = [first[number]["tokens"].tolist() for number in range(8)]
        backward = [again[number]["tokens"].tolist() for number in reversed(range(8))]
        assert forward == backward[::-1]
        assert forward != [other[number]["tokens"].tolist() for number in range(8)]

    @pytest.mark.parametrize("masks", [False, True])
    def test_with_rate_zero_samples_are_megatron_s(self, prefix, masks):
        chosen = dict.fromkeys(("reset_position_ids", "reset_attention_mask", "eod_mask_loss"), masks)
        chosen["skip_getting_attention_mask_from_dataset"] = not masks
        plain = self.build(prefix, GPTDatasetConfig, **chosen)[0]
        rewritten = self.build(prefix, fim_rate=0.0, **chosen)[0]
        for number in range(8):
            expected, found = plain[number], rewritten[number]
            assert {**expected}.keys() == {**found}.keys()
            assert all((expected[name] == found[name]).all() for name in expected)
            assert all(expected[name].dtype == found[name].dtype for name in expected)

    def test_padding_is_left_out_of_the_loss(self):
        from mb_data.fim.dataset import FIMDataset

        class Shrinking:
            tokens = find_fim_tokens(TOKENIZER, section())

            def __call__(self, sample, random):
                return sample[:-2]

        import torch

        complete = torch.arange(1, 10)
        texts = [{"tokens": complete[:-1], "labels": complete[1:]}]
        sample = FIMDataset(texts, transform=Shrinking(), seed=0)[0]
        assert sample["labels"].tolist() == [2, 3, 4, 5, 6, 7, EOD, EOD]
        assert sample["loss_mask"].tolist() == [1, 1, 1, 1, 1, 1, 0, 0]

    def test_a_text_corpus_is_tokenized_by_the_given_tokenizer(self, tmp_path):
        pytest.importorskip("megatron.core.datasets.gpt_dataset", reason="needs the mcore extra")
        from mb_data import build_fim_datasets

        for number in range(6):
            (tmp_path / f"{number}.txt").write_text(f"text number {number}, and more of it. " * 20)
        config = FIMTextCorpusConfig(
            seq_length=32,
            sources=[str(tmp_path)],
            cache_dir=str(tmp_path / ".cache"),
            fim_rate=1.0,
            fim_spm_rate=0.5,
            fim_extra_tokens=NAMES,
        )
        context = DatasetBuildContext(train_samples=4, valid_samples=0, test_samples=0)
        with pytest.raises(TokenizerError, match="the tokenizer is NoneType"):
            build_fim_datasets(config, context)
        named = TokenizerConfig(tokenizer_type="ByteTokenizer", special_tokens=[*NAMES.values()])
        config.tokenizer = load_tokenizer(named)
        train, _, _ = build_fim_datasets(config, context)
        assert {PRE, MID, SUF} <= set(train[0]["tokens"].tolist())
