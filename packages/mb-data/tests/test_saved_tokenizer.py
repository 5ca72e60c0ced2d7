"""Tokenizer of a run that starts from saved weights or resumes."""

import pytest

from mb_data import TokenizerConfig, find_saved_tokenizer, tokenizer_settings_of_weights
from mb_data.tokenizers.saved_tokenizer import original_tokenizer_settings, saved_tokenizer_settings

HUGGING_FACE = "HuggingFaceTokenizer"
TIKTOKEN = {"tiktoken_pattern": "v1", "vocab_size": 900, "tiktoken_num_special_tokens": 9}


@pytest.fixture
def folders(tmp_path):
    """Two folders with a tokenizer, the newer first, and one without."""
    folders = [tmp_path / name for name in ("none", "new", "old")]
    for folder in folders:
        folder.mkdir()
    for folder in folders[1:]:
        (folder / "tokenizer.json").touch()
    return folders


def settings(folder, **more):
    return {"tokenizer_type": HUGGING_FACE, "tokenizer_model": (folder / "tokenizer.json").as_posix(), **more}


def test_the_newest_saved_tokenizer_is_taken(folders):
    choose = {"is_resumed": False, "read_section": lambda folder: {"vocab_extra_ids": len(folder.name)}}
    assert tokenizer_settings_of_weights(folders, original=None, **choose) == settings(
        folders[1], vocab_extra_ids=3
    )
    assert tokenizer_settings_of_weights(folders[:1], original=None, **choose) == {}


def test_a_resumed_run_keeps_the_tokenizer_that_it_started_with(folders, tmp_path):
    read = {"read_section": lambda folder: {}}
    old, gone = settings(folders[2]), settings(tmp_path / "gone", vocab_extra_ids=3)
    for is_resumed in (False, True):
        assert tokenizer_settings_of_weights(folders, original=old, is_resumed=is_resumed, **read) == old
    assert tokenizer_settings_of_weights(folders, original=gone, is_resumed=True, **read) == gone
    assert tokenizer_settings_of_weights(folders, original=gone, is_resumed=False, **read) == settings(
        folders[1]
    )


def test_the_original_settings_are_those_of_a_saved_section():
    saved = {"tokenizer_model": "a/tokenizer.json", "vocab_extra_ids": 3, "vocab_size": 5}
    assert original_tokenizer_settings(saved) == {
        "tokenizer_type": HUGGING_FACE,
        "tokenizer_model": "a/tokenizer.json",
        "vocab_extra_ids": 3,
    }
    assert original_tokenizer_settings({"tokenizer_type": "ByteTokenizer"}) is None


@pytest.mark.parametrize(
    ("file", "kind", "section"),
    [
        ("tokenizer.json", HUGGING_FACE, {"special_tokens": ["<a>"], "vocab_extra_ids": 3}),
        ("tokenizer.json", HUGGING_FACE, {"tokenizer_hf_no_include_special_tokens": True}),
        ("tokenizer.model", "SentencePieceTokenizer", {"vocab_extra_ids": 3}),
        ("tiktoken.json", "TikTokenizer", TIKTOKEN | {"special_tokens": ["<a>"]}),
    ],
)
def test_every_kind_is_taken_with_the_settings_that_determine_its_ids(file, kind, section, tmp_path):
    (tmp_path / file).touch()
    found = saved_tokenizer_settings(tmp_path, section | {"vocab_file": "gone"})
    assert found == {"tokenizer_type": kind, "tokenizer_model": str(tmp_path / file), **section}


def test_a_saved_tokenizer_replaces_missing_files_of_the_same_names(folders, tmp_path):
    missing = {"tokenizer_type": HUGGING_FACE, "tokenizer_model": str(tmp_path / "gone.json")}
    config, read = TokenizerConfig(**missing), {"read_section": lambda folder: missing}
    assert find_saved_tokenizer(config, folders, **read) == folders[1]
    assert find_saved_tokenizer(config, folders[:1], **read) is None
    assert find_saved_tokenizer(config, folders, read_section=lambda folder: {}) is None
    config.tokenizer_model = str(folders[2] / "tokenizer.json")
    assert find_saved_tokenizer(config, folders, **read) is None
    assert find_saved_tokenizer(TokenizerConfig(), folders, **read) is None
