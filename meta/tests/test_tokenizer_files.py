"""Tokenizers that are unreadable or do not fit the model: `mb pretrain` ends before it loads torch and Megatron."""

import json

import pytest
from typer.testing import CliRunner

from mb_trainer.cli.app import app
from mb_trainer.run import trainer

BROKEN = {
    "HuggingFaceTokenizer": "is not a tokenizer",
    "SentencePieceTokenizer": "is not a SentencePiece model",
    "Llama2Tokenizer": "is not a SentencePiece model",
    "TikTokenizer": "is not a list of entries",
}


@pytest.fixture(autouse=True)
def nothing_is_loaded(tmp_path, monkeypatch):
    """Run in an empty folder, and fail the test if a run loads torch and Megatron."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(trainer, "import_module", lambda name: pytest.fail(f"{name} is loaded"))


def refusal(command, *overrides):
    result = CliRunner().invoke(app, [command, "gpt_tiny", *overrides])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.stderr


@pytest.mark.parametrize("kind", BROKEN)
@pytest.mark.parametrize(
    ("content", "message"), [(None, "no such file"), (b"", None), (b"garbage", None), (b"\xff\x00\x91", None)]
)
def test_a_missing_or_broken_file_is_named(tmp_path, kind, content, message):
    file = tmp_path / "tokens"
    if content is not None:
        file.write_bytes(content)
    words = (f"tokenizer.tokenizer_type={kind}", f"tokenizer.tokenizer_model={file}")
    code, error = refusal("pretrain", *words)
    assert (code, str(file) in error, (message or BROKEN[kind]) in error) == (1, True, True)
    result = CliRunner().invoke(app, ["check", "gpt_tiny", *words])
    assert (result.exit_code, "error D99  tokenizer.tokenizer_type: " in result.stdout) == (1, True)
    assert (str(file) in result.stdout, (message or BROKEN[kind]) in result.stdout) == (True, True)


@pytest.mark.parametrize("wrong", ["vocab.json", "merges.txt"])
@pytest.mark.parametrize("content", [None, b"\xff\x00\x91"])
def test_gpt2s_two_files_are_both_read(tmp_path, wrong, content):
    (tmp_path / "vocab.json").write_text(json.dumps({"a": 0}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    (tmp_path / wrong).unlink()
    if content is not None:
        (tmp_path / wrong).write_bytes(content)
    files = ("tokenizer.vocab_file=vocab.json", "tokenizer.merge_file=merges.txt")
    code, error = refusal("pretrain", "tokenizer.tokenizer_type=GPT2BPETokenizer", *files)
    assert (code, wrong in error) == (1, True)


def test_tokens_without_a_row_of_the_embedding_are_refused_and_check_reports_them():
    words = ("tokenizer.tokenizer_type=ByteTokenizer", "model.vocab_size=256")
    code, error = refusal("pretrain", *words)
    assert (code, "model.vocab_size: 256 is smaller than the tokenizer's 257" in error) == (1, True)
    result = CliRunner().invoke(app, ["check", "gpt_tiny", *words])
    assert (result.exit_code, "error G38  model.vocab_size: 256 is smaller" in result.stdout) == (1, True)


MISSING = ("tokenizer.tokenizer_type=HuggingFaceTokenizer", "tokenizer.tokenizer_model=nowhere.json")


def test_plan_and_sweep_report_a_missing_tokenizer_too():
    code, error = refusal("plan", *MISSING)
    assert (code, "nowhere.json: no such file" in error) == (1, True)
    result = CliRunner().invoke(app, ["sweep", "gpt_tiny", *MISSING, "train.micro_batch_size=1,2"])
    assert (result.exit_code, "nowhere.json: no such file" in result.stdout) == (1, True)


def test_the_tokenizer_of_another_machine_is_not_expected_here():
    result = CliRunner().invoke(app, ["check", "gpt_tiny", *MISSING, "--gpu", "h100"])
    assert (result.exit_code, "on this machine: nowhere.json: no such file" in result.stderr) == (0, True)


def test_mistakes_in_the_sections_of_the_tokenizer_keep_its_files_unread():
    result = CliRunner().invoke(app, ["check", "gpt_tiny", *MISSING, "tokenizer.vocab_extra_ids=-1"])
    assert (result.exit_code, "D99" in result.stdout) == (1, False)
