"""Tokenizers of files, compared with the libraries that read them."""

import base64
import io
import json
import pickle
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mb_data import (
    ByteTokenizer,
    ExtendedTokenizer,
    TokenizerConfig,
    TokenizerError,
    load_saved_tokenizer,
    load_tokenizer,
    save_tokenizer,
)
from mb_data.chat.samples import ChatEncoder
from mb_data.errors import DataPathError, TokenizerLibraryError
from mb_data.finetuning.options import read_options

TEXTS = (
    "",
    "The quick brown fox; it's 12345 jumps.\n\n\tdef f(x):\r\n    return x",
    "Die heiße Quelle läuft über. ΑΒΓ абв 漢字かな 안녕 🙂🏽 é",
    "a</s>b <|endoftext|> <fim_prefix> <extra_id_0>",
    "   blanks  ",
)
"""Words, digits, lines, other alphabets, combined characters, and text that resembles special tokens."""


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    pytest.importorskip("tokenizers", reason="needs the tokenizers extra")
    from mb_data import train_bpe

    folder = tmp_path_factory.mktemp("gpt2")
    (folder / "text.txt").write_text("\n".join(TEXTS) * 5)
    train_bpe([folder / "text.txt"], vocab_size=320, out=folder / "complete.json")
    model = json.loads((folder / "complete.json").read_text())["model"]
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]))
    merges = (merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"])
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges))
    (folder / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "GPT2Tokenizer", "eos_token": "<|endoftext|>"}'
    )
    return folder


@pytest.fixture(scope="module")
def pieces(tmp_path_factory):
    library = pytest.importorskip("sentencepiece", reason="needs the sentencepiece extra")
    model = io.BytesIO()
    library.SentencePieceTrainer.train(
        sentence_iterator=iter("\n".join(TEXTS * 9).splitlines()),
        model_writer=model,
        vocab_size=420,
        byte_fallback=True,
        model_type="bpe",
        hard_vocab_limit=False,
        minloglevel=2,
        num_threads=1,
    )
    path = tmp_path_factory.mktemp("pieces") / "small.model"
    path.write_bytes(model.getvalue())
    return path


@pytest.fixture(scope="module")
def ranked(tmp_path_factory):
    pytest.importorskip("tiktoken", reason="needs the tiktoken extra")
    entries = [bytes([byte]) for byte in range(256)] + [b"th", b"the", b" the", b"qu", b"12", b"\xc3\xa9"]
    return write_ranks(tmp_path_factory.mktemp("ranks") / "small.json", entries)


@pytest.fixture(scope="module")
def small(ranked):
    return load_tokenizer(of_model("TikTokenizer", ranked))


def write_ranks(path, entries):
    records = (
        {"rank": rank, "token_bytes": base64.b64encode(entry).decode(), "token_str": None}
        for rank, entry in enumerate(entries)
    )
    path.write_text(json.dumps(list(records)))
    return path


def of_gpt2(folder, **more):
    files = {"vocab_file": str(folder / "vocab.json"), "merge_file": str(folder / "merges.txt")}
    return TokenizerConfig(tokenizer_type="GPT2BPETokenizer", **files, **more)


def of_model(kind, path, **more):
    return TokenizerConfig(tokenizer_type=kind, tokenizer_model=str(path), **more)


class TestGPT2:
    @settings(max_examples=50, deadline=None)
    @given(text=st.text())
    def test_any_text_round_trips(self, gpt2, text):
        tokenizer = load_tokenizer(of_gpt2(gpt2))
        assert tokenizer.decode(tokenizer.encode(text)) == text

    def test_it_equals_the_tokenizer_of_its_files(self, gpt2):
        tokenizer, complete = load_tokenizer(of_gpt2(gpt2)), load_tokenizer(gpt2 / "complete.json")
        assert [tokenizer.encode(text) for text in TEXTS] == [complete.encode(text) for text in TEXTS]
        assert (tokenizer.vocab_size, tokenizer.eod) == (complete.vocab_size, complete.eod)

    def test_a_folder_without_a_tokenizer_json_is_read_as_transformers_reads_it(self, gpt2):
        transformers = pytest.importorskip("transformers", reason="reads such folders")
        theirs = transformers.AutoTokenizer.from_pretrained(str(gpt2))
        tokenizer = load_tokenizer(of_model("HuggingFaceTokenizer", gpt2))
        plain = TEXTS[:3] + TEXTS[4:]  # without special tokens, which are encoded as ordinary text here
        assert [tokenizer.encode(text) for text in plain] == [theirs(text).input_ids for text in plain]
        assert (tokenizer.eod, tokenizer.vocab_size) == (theirs.eos_token_id, len(theirs))

    def test_a_folder_that_transformers_cannot_read(self, tmp_path):
        pytest.importorskip("transformers", reason="reads such folders")
        (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"')
        with pytest.raises(TokenizerError, match="transformers cannot read it as a tokenizer"):
            load_tokenizer(tmp_path)

    def test_a_missing_file_is_named(self, gpt2):
        with pytest.raises(DataPathError, match=r"no\.txt: no such file.*Correct tokenizer\.merge_file"):
            load_tokenizer(_other(gpt2, "no.txt"))

    def test_files_that_are_not_a_bpe(self, gpt2):
        with pytest.raises(TokenizerError, match="are not a BPE"):
            load_tokenizer(_other(gpt2, "vocab.json"))


def _other(folder, merges):
    config = of_gpt2(folder)
    config.merge_file = str(folder / merges)
    return config


class TestSentencePiece:
    @pytest.mark.parametrize(
        "kind", ["SentencePieceTokenizer", "GPTSentencePieceTokenizer", "Llama2Tokenizer"]
    )
    def test_ids_are_the_library_s(self, pieces, kind):
        library = pytest.importorskip("sentencepiece")
        theirs = library.SentencePieceProcessor(model_file=str(pieces))
        tokenizer = load_tokenizer(of_model(kind, pieces))
        assert [tokenizer.encode(text) for text in TEXTS] == [theirs.encode(text) for text in TEXTS]
        assert (tokenizer.vocab_size, tokenizer.eod) == (len(theirs), theirs.eos_id())
        assert tokenizer.fingerprint == load_tokenizer(pieces).fingerprint

    def test_ids_are_megatron_s(self, pieces):
        door = pytest.importorskip("megatron.core.tokenizers.text.libraries.sentencepiece_tokenizer")
        theirs, tokenizer = door.SentencePieceTokenizer(str(pieces)), load_tokenizer(pieces)
        assert [tokenizer.encode(text) for text in TEXTS] == [theirs.text_to_ids(text) for text in TEXTS]
        assert (tokenizer.vocab_size, tokenizer.eod) == (theirs.vocab_size, theirs.eos_id)

    def test_text_round_trips_and_ends_of_documents_are_decoded(self, pieces):
        tokenizer = pickle.loads(pickle.dumps(load_tokenizer(pieces)))
        first, second = tokenizer.encode("heiße 漢字"), tokenizer.encode("🙂 fox")
        assert tokenizer.decode([*first, tokenizer.eod, *second, 10_000]) == "heiße 漢字</s>🙂 fox"
        assert tokenizer.eod not in tokenizer.encode("a</s>b")

    def test_a_saved_model_keeps_its_bytes(self, pieces, tmp_path):
        path = tmp_path / "otherwise.model"
        path.write_bytes(
            pieces.read_bytes() + b"\x12\x00"
        )  # an additional empty message, which is merged with the first
        config = of_model("SentencePieceTokenizer", path)
        tokenizer = load_tokenizer(config)
        save_tokenizer(tokenizer, tmp_path)
        path.unlink()
        assert load_saved_tokenizer(tmp_path, config).fingerprint == tokenizer.fingerprint

    def test_pieces_have_names(self, pieces):
        tokenizer = load_tokenizer(pieces)
        assert (tokenizer.token_id("</s>"), tokenizer.token_id("<fim_prefix>")) == (tokenizer.eod, None)

    def test_a_file_that_is_not_a_model(self, tmp_path):
        pytest.importorskip("sentencepiece", reason="needs the sentencepiece extra")
        with pytest.raises(DataPathError, match=r"no\.model: no such file"):
            load_tokenizer(tmp_path / "no.model")
        (tmp_path / "bad.model").write_text("nonsense")
        with pytest.raises(TokenizerError, match="is not a SentencePiece model"):
            load_tokenizer(tmp_path / "bad.model")

    def test_a_model_without_an_end(self, tmp_path):
        library = pytest.importorskip("sentencepiece", reason="needs the sentencepiece extra")
        model = io.BytesIO()
        library.SentencePieceTrainer.train(
            sentence_iterator=iter(["to be or not to be"] * 9),
            model_writer=model,
            vocab_size=20,
            hard_vocab_limit=False,
            eos_id=-1,
            minloglevel=2,
        )
        (tmp_path / "endless.model").write_bytes(model.getvalue())
        with pytest.raises(TokenizerError, match="has no token that ends a document"):
            load_tokenizer(tmp_path / "endless.model")


class TestTikToken:
    def test_special_tokens_of_a_conversation_are_entries_and_have_positions(self, small):
        text = "<s>the é</s>\n🙂<pad>"
        ids, offsets = small.encode_with_offsets(text)
        assert small.decode(ids) == text
        assert [ids[0], small.eod in ids, set(small.special_names) >= {"<s>", "<pad>"}] == [
            small.token_id("<s>"),
            True,
            True,
        ]
        assert {text[start:end] for start, end in offsets} == {
            "<s>",
            "the",
            " ",
            "é",
            "</s>",
            "\n",
            "🙂",
            "<pad>",
        }
        assert len(ids) == len(offsets) == 11  # the smiling face has four tokens, all at its position

    def test_a_conversation_is_encoded_with_the_template_of_the_section(self, ranked):
        section = of_model(
            "TikTokenizer", ranked, chat_template="{% for m in messages %}<s>{{ m.content }}{% endfor %}"
        )
        encoder = ChatEncoder.of(
            load_tokenizer(section), read_options({"chat": True, "use_hf_tokenizer_chat_template": True})
        )
        talk = [{"role": "user", "content": "qu"}, {"role": "assistant", "content": "the"}]
        (sample,) = encoder({"messages": talk}, location="a.jsonl:1")
        assert len(sample.ids) == 4
        assert sum(sample.loss_mask) == 2

    @pytest.mark.parametrize("pattern", ["v1", "v2"])
    def test_ids_are_megatron_s(self, ranked, pattern):
        door = pytest.importorskip("megatron.core.tokenizers.text.libraries.tiktoken_tokenizer")
        size = {"num_special_tokens": 10, "vocab_size": 272}
        theirs = door.TikTokenTokenizer(str(ranked), pattern=pattern, **size)
        tokenizer = load_tokenizer(
            of_model(
                "TikTokenizer",
                ranked,
                tiktoken_pattern=pattern,
                tiktoken_num_special_tokens=10,
                vocab_size=272,
            )
        )
        plain = [
            text for text in TEXTS if "</s>" not in text
        ]  # which Megatron encodes as the end-of-document token
        assert [tokenizer.encode(text) for text in plain] == [theirs.text_to_ids(text) for text in plain]
        assert (tokenizer.vocab_size, tokenizer.eod) == (theirs.vocab_size, theirs.eod)

    @pytest.mark.parametrize("pattern", ["v1", "v2"])
    @settings(max_examples=100, deadline=None)
    @given(text=st.text())
    def test_texts_are_split_as_in_megatron(self, pattern, text):
        regex = pytest.importorskip("regex", reason="comes with tiktoken")
        door = pytest.importorskip("megatron.core.tokenizers.text.libraries.tiktoken_tokenizer")
        tiktoken_door = pytest.importorskip("mb_data.tokenizers.tiktoken")
        theirs = getattr(door, f"_PATTERN_TIKTOKEN_{pattern.upper()}")
        assert regex.findall("|".join(tiktoken_door.PATTERNS[pattern]), text) == regex.findall(theirs, text)

    @settings(max_examples=50, deadline=None)
    @given(text=st.text())
    def test_any_text_round_trips(self, small, text):
        assert small.decode(small.encode(text)) == text

    def test_special_tokens_come_first_and_are_never_produced_from_text(self, ranked):
        tokenizer = pickle.loads(pickle.dumps(load_tokenizer(of_model("TikTokenizer", ranked))))
        assert (tokenizer.vocab_size, tokenizer.eod, tokenizer.token_id("<SPECIAL_999>")) == (1262, 2, 999)
        assert min(tokenizer.encode("a</s>b")) >= 1000
        assert tokenizer.decode([1300, 1000 + 104, tokenizer.eod]) == "h</s>"

    @pytest.mark.parametrize(
        ("more", "message"),
        [
            ({"special_tokens": ["<s>", "</s>"]}, r"missing \['<unk>', '<mask>'"),
            ({"tiktoken_num_special_tokens": 3}, "7 names, 7 of them different, for 3 reserved ids"),
            (
                {"vocab_size": 5000},
                "262 entries and 1000 reserved special tokens are 1262, but vocab_size=5000",
            ),
            ({"tiktoken_pattern": "v3"}, "'v3' does not exist"),
        ],
    )
    def test_inconsistent_settings_are_rejected(self, ranked, more, message):
        with pytest.raises(TokenizerError, match=message):
            load_tokenizer(of_model("TikTokenizer", ranked, **more))

    def test_a_file_that_is_not_a_list(self, ranked, tmp_path):
        with pytest.raises(DataPathError, match=r"no\.json: no such file"):
            load_tokenizer(of_model("TikTokenizer", tmp_path / "no.json"))
        (tmp_path / "bad.json").write_text("aGVsbG8= 0\n")
        with pytest.raises(TokenizerError, match="is not a list of entries with rank and token_bytes"):
            load_tokenizer(of_model("TikTokenizer", tmp_path / "bad.json"))
        few = write_ranks(tmp_path / "few.json", [b"a", b"b"])
        with pytest.raises(TokenizerError, match="254 of the 256 bytes missing"):
            load_tokenizer(of_model("TikTokenizer", few))


class TestAdded:
    def test_they_follow_the_entries_and_are_never_produced_from_text(self):
        tokenizer = ExtendedTokenizer(ByteTokenizer(), ["<fim_prefix>", "<fim_suffix>"])
        assert (tokenizer.vocab_size, tokenizer.token_id("<fim_suffix>"), tokenizer.eod) == (259, 258, 256)
        assert tokenizer.encode("<fim_prefix>") == list(b"<fim_prefix>")
        assert tokenizer.decode([257, 104, 105, 258]) == "<fim_prefix>hi<fim_suffix>"
        assert tokenizer.token_id("hi") is None

    def test_an_existing_name_is_not_added_again(self, gpt2):
        plain = load_tokenizer(gpt2 / "complete.json")
        tokenizer = ExtendedTokenizer(plain, ["<|endoftext|>"])
        assert (tokenizer.vocab_size, tokenizer.fingerprint) == (plain.vocab_size, plain.fingerprint)
        assert tokenizer.token_id("<|endoftext|>") == plain.eod

    @pytest.mark.parametrize("names", [["<a>", "<a>"], [""]])
    def test_ambiguous_names(self, names):
        with pytest.raises(TokenizerError, match="identified by their names"):
            ExtendedTokenizer(ByteTokenizer(), names)

    def test_a_section_adds_them_before_sentinels(self):
        config = TokenizerConfig(tokenizer_type="ByteTokenizer", special_tokens=["<sep>"], vocab_extra_ids=2)
        tokenizer = load_tokenizer(config)
        assert (tokenizer.vocab_size, tokenizer.token_id("<sep>")) == (260, 257)
        assert tokenizer.decode([257, 258, 259]) == "<sep><extra_id_0><extra_id_1>"


@pytest.mark.parametrize("kind", ["gpt2", "folder", "pieces", "ranked", "bytes"])
def test_a_saved_tokenizer_loads_identically(kind, request, tmp_path):
    if kind == "folder":
        pytest.importorskip("transformers", reason="reads such folders")
    makers = {
        "gpt2": lambda: of_gpt2(request.getfixturevalue("gpt2"), special_tokens=["<sep>"]),
        "folder": lambda: of_model("HuggingFaceTokenizer", request.getfixturevalue("gpt2")),
        "pieces": lambda: of_model("SentencePieceTokenizer", request.getfixturevalue("pieces")),
        "ranked": lambda: of_model("TikTokenizer", request.getfixturevalue("ranked"), tiktoken_pattern="v1"),
        "bytes": lambda: TokenizerConfig(tokenizer_type="ByteTokenizer", vocab_extra_ids=3),
    }
    config = makers[kind]()
    tokenizer = load_tokenizer(config)
    save_tokenizer(tokenizer, tmp_path)
    if kind != "bytes":
        config.tokenizer_model = config.vocab_file = config.merge_file = "gone"
    kept = load_saved_tokenizer(tmp_path, config)
    assert (kept.fingerprint, kept.eod, kept.vocab_size) == (
        tokenizer.fingerprint,
        tokenizer.eod,
        tokenizer.vocab_size,
    )
    assert [kept.encode(text) for text in TEXTS] == [tokenizer.encode(text) for text in TEXTS]


def test_a_library_that_is_not_installed_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    monkeypatch.delitem(sys.modules, "mb_data.tokenizers.sentencepiece", raising=False)
    with pytest.raises(TokenizerLibraryError, match=r'pip install "mb-data\[sentencepiece\]"'):
        load_tokenizer(tmp_path / "small.model")


def test_options_of_hugging_face_apply_and_are_saved(gpt2, tmp_path):
    pytest.importorskip("transformers", reason="needs the transformers extra")
    section = TokenizerConfig(
        tokenizer_type="HuggingFaceTokenizer",
        tokenizer_model=str(gpt2 / "complete.json"),
        hf_tokenizer_kwargs={"eos_token": "<end>"},
    )
    tokenizer = load_tokenizer(section)
    assert (tokenizer.vocab_size, tokenizer.eod, tokenizer.token_id("<end>")) == (321, 320, 320)
    save_tokenizer(tokenizer, tmp_path)
    assert load_saved_tokenizer(tmp_path, section).eod == 320


def test_options_that_transformers_rejects_and_a_missing_file_are_named(gpt2, tmp_path):
    pytest.importorskip("transformers", reason="needs the transformers extra")
    section = TokenizerConfig(
        tokenizer_type="HuggingFaceTokenizer",
        tokenizer_model=str(gpt2 / "complete.json"),
        hf_tokenizer_kwargs={"eos_token": 5},
    )
    with pytest.raises(TokenizerError, match=r"with hf_tokenizer_kwargs=\{'eos_token': 5\}"):
        load_tokenizer(section)
    section.tokenizer_model = str(tmp_path / "missing")
    with pytest.raises(DataPathError, match="missing: no such file or folder"):
        load_tokenizer(section)


CODE = """
from pathlib import Path
from transformers import {base}

Path(__file__).with_name("ran").touch()


class Letters({base}):
    vocab_files_names = {{"vocab_file": "letters.txt"}}

    def __init__(self, vocab_file, **options):
        self.letters = Path(vocab_file).read_text().split()
        super().__init__(**options)

    @property
    def vocab_size(self):
        return len(self.letters)

    def get_vocab(self):
        return {{letter: number for number, letter in enumerate(self.letters)}} | self.added_tokens_encoder

    def _tokenize(self, text, **_):
        return [letter for letter in text if letter in self.letters]

    def _convert_token_to_id(self, token):
        return self.letters.index(token)

    def _convert_id_to_token(self, number):
        return self.letters[number]

    def convert_tokens_to_string(self, tokens):
        return "".join(tokens)
"""


@pytest.fixture
def code(tmp_path, monkeypatch):
    """A folder with a tokenizer that is made of code, as those of Moonlight and Kimi."""
    pytest.importorskip("transformers", reason="needs the transformers extra")
    from transformers import dynamic_module_utils

    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    folder = tmp_path / "letters"
    folder.mkdir()
    (folder / "letters.py").write_text(CODE.format(base="PreTrainedTokenizer"))
    (folder / "letters.txt").write_text("a b c < e n d >")
    settings = {"tokenizer_class": "Letters", "auto_map": {"AutoTokenizer": ["letters.Letters", None]}}
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "eos_token": "<end>"}))
    return folder


def test_a_tokenizer_of_code_needs_consent_and_then_equals_that_of_transformers(code, tmp_path):
    from transformers import AutoTokenizer

    section = of_model("HuggingFaceTokenizer", code)
    with pytest.raises(
        TokenizerError, match=r"letters: its tokenizer is Python code.*trust_remote_code=true"
    ):
        load_tokenizer(section)
    assert not list(tmp_path.rglob("ran"))
    section.trust_remote_code = True
    tokenizer = load_tokenizer(section)
    assert list(tmp_path.rglob("ran"))
    theirs = AutoTokenizer.from_pretrained(code, trust_remote_code=True)
    assert tokenizer.encode("abca") == theirs.encode("abca") == [0, 1, 2, 0]
    assert tokenizer.encode("<end>") == [3, 4, 5, 6, 7]  # text, and not the end of a document
    assert (tokenizer.eod, tokenizer.vocab_size, tokenizer.token_id("c")) == (8, len(theirs), 2)
    assert tokenizer.decode([0, 8, 1]) == theirs.decode([0, 8, 1]) == "a<end>b"


def test_a_tokenizer_of_code_is_read_again_by_workers_and_its_fingerprint_follows_its_files(code):
    section = of_model("HuggingFaceTokenizer", code, trust_remote_code=True)
    tokenizer = load_tokenizer(section)
    copy = pickle.loads(pickle.dumps(tokenizer))
    assert (copy.encode("cab"), copy.fingerprint) == ([2, 0, 1], tokenizer.fingerprint)
    (code / "letters.txt").write_text("b a c < e n d >")
    assert load_tokenizer(section).fingerprint != tokenizer.fingerprint
    (code / "tokenizer_config.json").write_text(
        (code / "tokenizer_config.json").read_text().replace("eos", "bos")
    )
    with pytest.raises(TokenizerError, match="has no token that ends a document"):
        load_tokenizer(section)


def test_consent_without_code_reads_the_same_tokenizer(gpt2):
    trusted = load_tokenizer(of_model("HuggingFaceTokenizer", gpt2, trust_remote_code=True))
    assert [trusted.encode(text) for text in TEXTS] == [
        load_tokenizer(of_model("HuggingFaceTokenizer", gpt2)).encode(text) for text in TEXTS
    ]


@pytest.mark.parametrize("settings", ['{"eos_token": {"x": 1}}', '{"eos_token": 5}', "[]", "{"])
def test_settings_without_a_valid_end_are_rejected(gpt2, tmp_path, settings):
    (tmp_path / "tokenizer.json").write_bytes((gpt2 / "complete.json").read_bytes())
    (tmp_path / "tokenizer_config.json").write_text(settings)
    with pytest.raises(
        TokenizerError, match=r"tokenizer_config\.json: is not a JSON object with an eos_token"
    ):
        load_tokenizer(tmp_path)


def test_an_empty_model_is_rejected(pieces, tmp_path):
    (tmp_path / "empty.model").touch()
    with pytest.raises(TokenizerError, match=r"is not a SentencePiece model \(the file is empty\)"):
        load_tokenizer(tmp_path / "empty.model")
