import json
import os
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mb_data import (
    ByteTokenizer,
    NullTokenizer,
    SentinelTokenizer,
    TokenizerConfig,
    TokenizerError,
    load_tokenizer,
)
from mb_data.tokenizers.base import decode_stream, encode_texts

pytest.importorskip("tokenizers", reason="needs the tokenizers extra")
from mb_data import train_bpe
from mb_data.tokenizers.bpe import FileTokenizer

TEXT = "The quick brown fox jumps over the lazy dog. Die heiße Quelle läuft über. " * 20


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    (folder / "text.txt").write_text(TEXT)
    return train_bpe([folder / "text.txt"], vocab_size=300, out=folder / "tokenizer.json"), folder


@given(text=st.text())
def test_bytes_round_trip(text):
    assert ByteTokenizer().decode(ByteTokenizer().encode(text)) == text


def test_a_stream_of_ids_becomes_pieces_of_complete_characters():
    tokenizer = ByteTokenizer()
    ids = tokenizer.encode("aü∑")
    assert list(decode_stream(tokenizer, ids)) == ["a", "ü", "∑"]
    assert list(decode_stream(tokenizer, ids[:-1]))[:2] == ["a", "ü"]
    assert "".join(decode_stream(tokenizer, ids[:-1])).endswith("\N{REPLACEMENT CHARACTER}")
    assert list(decode_stream(tokenizer, [])) == []


def test_numbers_round_trip():
    tokenizer = NullTokenizer(100)
    assert tokenizer.encode("1 22 3") == [1, 22, 3]
    assert (tokenizer.decode([1, 22]), tokenizer.eod) == ("1 22", 99)


@pytest.mark.parametrize("text", ["one", "100", "-1"])
def test_text_that_is_not_a_number_of_the_vocabulary_is_rejected(text):
    with pytest.raises(TokenizerError, match="is not a number below 100"):
        NullTokenizer(100).encode(text)


def test_a_negative_number_of_sentinels_is_rejected():
    with pytest.raises(TokenizerError, match="-1 sentinels would remove entries of the vocabulary"):
        SentinelTokenizer(ByteTokenizer(), sentinels=-1)
    with pytest.raises(TokenizerError, match="vocab_extra_ids to 0 or more"):
        load_tokenizer(TokenizerConfig(tokenizer_type="ByteTokenizer", vocab_extra_ids=-2))
    assert SentinelTokenizer(ByteTokenizer(), sentinels=0).vocab_size == 257


class TestTrained:
    def test_it_has_exactly_the_requested_size(self, trained):
        tokenizer, _ = trained
        assert (tokenizer.vocab_size, max(tokenizer.encode(TEXT)) < 300) == (300, True)
        assert len(tokenizer.encode(TEXT)) < len(TEXT)

    @given(text=st.text())
    def test_any_text_round_trips(self, trained, text):
        assert trained[0].decode(trained[0].encode(text)) == text

    @given(texts=st.lists(st.text(), max_size=5))
    def test_several_texts_have_the_ids_of_each(self, trained, texts):
        tokenizer, _ = trained
        expected = [tokenizer.encode(text) for text in [*texts, "a<|endoftext|>b"]]
        for each in (
            tokenizer,
            SentinelTokenizer(tokenizer, sentinels=2),
            pickle.loads(pickle.dumps(tokenizer)),
        ):
            assert encode_texts(each, [*texts, "a<|endoftext|>b"]) == expected

    def test_a_tokenizer_that_encodes_in_another_way_encodes_each_text(self, trained):
        class Reversed(FileTokenizer):
            def encode(self, text):
                return super().encode(text)[::-1]

        tokenizer = Reversed(trained[1])
        assert encode_texts(tokenizer, [TEXT, "ab"]) == [tokenizer.encode(TEXT), tokenizer.encode("ab")]
        assert encode_texts(ByteTokenizer(), ["ab", ""]) == [[97, 98], []]

    def test_the_same_files_give_the_same_tokenizer(self, trained, tmp_path):
        tokenizer, folder = trained
        again = train_bpe([folder / "text.txt"], vocab_size=300, out=tmp_path / "tokenizer.json")
        assert again.fingerprint == tokenizer.fingerprint
        assert again.fingerprint == load_tokenizer(folder).fingerprint

    def test_text_cannot_end_a_document_even_in_another_process(self, trained):
        tokenizer, _ = trained
        text = "before<|endoftext|>after"
        copied = pickle.loads(pickle.dumps(tokenizer))
        assert tokenizer.eod not in tokenizer.encode(text)
        assert copied.encode(text) == tokenizer.encode(text)
        assert tokenizer.decode([tokenizer.eod]) == "<|endoftext|>"

    def test_training_leaves_the_environment_alone(self, trained):
        assert "TOKENIZERS_PARALLELISM" not in os.environ

    def test_progress_counts_files(self, tmp_path):
        (tmp_path / "text.txt").write_text(TEXT)
        seen = []
        train_bpe(
            [tmp_path / "text.txt"] * 2,
            vocab_size=280,
            out=tmp_path / "t.json",
            progress=lambda *step: seen.append(step),
        )
        assert seen == [("train tokenizer", 1, 2), ("train tokenizer", 2, 2)]

    def test_too_little_text_is_rejected(self, tmp_path):
        (tmp_path / "text.txt").write_text("ab")
        with pytest.raises(TokenizerError, match="1000 entries requested, but the text yields 258"):
            train_bpe([tmp_path / "text.txt"], vocab_size=1000, out=tmp_path / "t.json")
        assert not (tmp_path / "t.json").exists()

    def test_too_small_a_vocabulary_is_rejected(self, tmp_path):
        with pytest.raises(TokenizerError, match="256 is below 257"):
            train_bpe([], vocab_size=256, out=tmp_path / "t.json")


class TestLoad:
    @pytest.mark.parametrize(
        ("config", "size"),
        [
            (TokenizerConfig(tokenizer_type="ByteTokenizer"), 257),
            (TokenizerConfig(tokenizer_type="NullTokenizer", vocab_size=64), 64),
        ],
    )
    def test_types_without_a_file(self, config, size):
        assert load_tokenizer(config).vocab_size == size

    def test_a_folder_or_a_file(self, trained):
        _, folder = trained
        config = TokenizerConfig(tokenizer_type="HuggingFaceTokenizer", tokenizer_model=str(folder))
        assert load_tokenizer(config).eod == load_tokenizer(folder / "tokenizer.json").eod == 0

    def test_another_end_of_document_is_another_tokenizer_for_caches(self, trained, tmp_path):
        (tmp_path / "tokenizer.json").write_bytes((trained[1] / "tokenizer.json").read_bytes())
        default = load_tokenizer(tmp_path).fingerprint
        (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "<|endoftext|>"}')
        assert load_tokenizer(tmp_path).fingerprint == default
        (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "x"}')
        assert load_tokenizer(tmp_path).fingerprint != default

    @pytest.mark.parametrize("eos_token", ["x", {"content": "x"}])
    def test_the_settings_in_its_folder_may_name_the_end(self, trained, tmp_path, eos_token):
        (tmp_path / "tokenizer.json").write_bytes((trained[1] / "tokenizer.json").read_bytes())
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": eos_token}))
        tokenizer = load_tokenizer(tmp_path)
        assert tokenizer.decode([tokenizer.eod]) == "x"

    def test_truncation_in_the_file_does_not_apply(self, trained, tmp_path):
        content = json.loads((trained[1] / "tokenizer.json").read_text())
        content["truncation"] = {
            "direction": "Right",
            "max_length": 4,
            "strategy": "LongestFirst",
            "stride": 0,
        }
        (tmp_path / "tokenizer.json").write_text(json.dumps(content))
        assert load_tokenizer(tmp_path).encode(TEXT) == trained[0].encode(TEXT)

    def test_a_missing_file(self, tmp_path):
        with pytest.raises(FileNotFoundError, match=r"tokenizer\.json: no such file"):
            load_tokenizer(tmp_path)

    def test_a_file_that_is_not_a_tokenizer(self, tmp_path):
        (tmp_path / "tokenizer.json").write_text("{}")
        with pytest.raises(TokenizerError, match="is not a tokenizer"):
            load_tokenizer(tmp_path)

    def test_a_tokenizer_without_an_end_of_document(self, trained, tmp_path):
        content = (trained[1] / "tokenizer.json").read_text().replace("<|endoftext|>", "<|other|>")
        (tmp_path / "tokenizer.json").write_text(content)
        with pytest.raises(TokenizerError, match="has no token that ends a document"):
            load_tokenizer(tmp_path)

    @pytest.mark.parametrize(
        "config",
        [
            TokenizerConfig(),
            TokenizerConfig(tokenizer_type="SentencePieceTokenizer"),
            TokenizerConfig(tokenizer_type="NullTokenizer"),
            TokenizerConfig(tokenizer_type="HuggingFaceTokenizer"),
        ],
    )
    def test_incomplete_sections_are_rejected(self, config):
        with pytest.raises(TokenizerError, match="cannot load type"):
            load_tokenizer(config)
