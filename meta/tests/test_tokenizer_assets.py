"""Tokenizer of a run that starts from weights: that of the weights."""

import shutil
from pathlib import Path

import pytest
import yaml

from mb_checkpoint.formats.layout import iteration_directory
from mb_data import load_tokenizer, save_tokenizer, train_bpe
from mb_metrics.run.folder import RunFolder
from mb_trainer.config import TokenizerConfig
from mb_trainer.requests import read_request
from mb_trainer.run.completion import complete
from mb_trainer.run.data_checks import kept_by_run, read_tokenizer_facts, where_tokenizer
from mb_trainer.run.run_folder import saved_settings

HUGGING_FACE = "HuggingFaceTokenizer"


@pytest.fixture
def base(tmp_path):
    """Return a run folder with two checkpoints that contain a tokenizer."""
    for step in (100, 200):
        folder = iteration_directory(tmp_path / "base" / "checkpoints", step)
        folder.mkdir(parents=True)
        (folder / "tokenizer.json").touch()
    return tmp_path / "base"


def newest_of(base):
    return iteration_directory(base / "checkpoints", 200)


def placed(*words, out):
    request = read_request(words)
    complete(request.config, RunFolder(out), request.provenance, for_any_start=True)
    return request


def tokenizer(*words, out):
    section = placed(*words, out=out).config.tokenizer
    return section.tokenizer_type, section.tokenizer_model


@pytest.mark.parametrize("recipe", ["gpt_tiny", "lora_tiny", "sft_tiny"])
def test_a_run_on_other_weights_reads_by_their_tokenizer(recipe, base, tmp_path):
    newest = iteration_directory(base / "checkpoints", 200)
    for named in (base, base / "checkpoints", newest):
        (newest / "train_state.pt").touch()
        found = tokenizer(recipe, f"checkpoint.pretrained_checkpoint={named}", out=tmp_path / "out")
        assert found == (HUGGING_FACE, str(newest / "tokenizer.json"))


def test_a_tokenizer_that_the_user_named_stays(base, tmp_path):
    words = [f"checkpoint.pretrained_checkpoint={base}", "tokenizer.tokenizer_type=ByteTokenizer"]
    assert tokenizer("gpt_tiny", *words, out=tmp_path / "out") == ("ByteTokenizer", None)
    words[1] = "tokenizer.tokenizer_model=mine.json"
    assert tokenizer("lora_tiny", *words, out=tmp_path / "out") == (HUGGING_FACE, "mine.json")


def test_without_a_kept_tokenizer_nothing_is_taken(tmp_path):
    words = [f"checkpoint.pretrained_checkpoint={tmp_path}"]
    assert tokenizer("gpt_tiny", *words, out=tmp_path / "out") == (None, None)


@pytest.mark.parametrize("damage", ["", "\n- [", "\ntokenizer: 3"])
def test_a_resumed_run_keeps_its_first_tokenizer(damage, base, tmp_path):
    first, newest = (
        str(iteration_directory(base / "checkpoints", step) / "tokenizer.json") for step in (100, 200)
    )
    began = f"checkpoint: {{pretrained_checkpoint: {base / 'checkpoints'}}}\ntokenizer:\n  tokenizer_model: {first}"
    (tmp_path / "run_config.yaml").write_text(f"{began}{damage}")
    found = tokenizer("lora_tiny", f"checkpoint.pretrained_checkpoint={base}", out=tmp_path)
    assert found == (HUGGING_FACE, newest if damage else first)


@pytest.fixture
def begun(base, tmp_path):
    """Return the arguments and the folder of a run that starts from the base's newest checkpoint and has saved once."""
    words = ("lora_tiny", f"checkpoint.pretrained_checkpoint={base}", "tokenizer.special_tokens=[new]")
    out = tmp_path / "run"
    request, folder = placed(*words, out=out), iteration_directory(out / "checkpoints", 7)
    train_bpe([Path(__file__)], vocab_size=300, out=newest_of(base) / "tokenizer.json")
    folder.mkdir(parents=True)
    for place_of in (out, folder):
        request.config.to_yaml(place_of / "run_config.yaml")
    (folder / "train_state.pt").touch()
    save_tokenizer(load_tokenizer(request.config.tokenizer), folder)
    return words, out


@pytest.mark.parametrize("left", ["pruned", "emptied"])
def test_a_run_resumes_although_its_first_checkpoint_is_gone(left, base, begun):
    words, out = begun
    size = read_tokenizer_facts(placed(*words, out=out).config).get("tokenizer_entries")
    if left == "pruned":
        newest_of(base).rename(iteration_directory(base / "checkpoints", 300))
    else:
        shutil.rmtree(base / "checkpoints")
        (base / "checkpoints").mkdir()
    again = placed(*words, out=out).config
    assert saved_settings(RunFolder(out)).differences(again) == {}
    own = iteration_directory(out / "checkpoints", 7)
    assert kept_by_run(again) == own
    assert where_tokenizer(again) == (
        f"tokenizer: {newest_of(base)}/tokenizer.json is gone; read as {own} has kept it"
    )
    assert read_tokenizer_facts(again).get("tokenizer_entries") == size == 301


def test_a_run_keeps_its_tokenizer_without_weights_whose_folder_is_gone(base, begun):
    words, out = begun
    shutil.rmtree(base)
    for changed in (["checkpoint.pretrained_checkpoint"], []):
        again = placed(*words, "checkpoint.pretrained_checkpoint=null", out=out).config
        assert list(saved_settings(RunFolder(out)).differences(again)) == changed
        assert kept_by_run(again) == iteration_directory(out / "checkpoints", 7)
        again.to_yaml(out / "run_config.yaml")


def test_a_file_that_is_named_and_missing_is_not_replaced_by_another(begun):
    words, out = begun
    there = placed(*words, out=out).config
    assert (kept_by_run(there), where_tokenizer(there)) == (None, None)
    other = placed(*words, "tokenizer.tokenizer_model=mistyped.json", out=out).config
    assert (kept_by_run(other), read_tokenizer_facts(other).get("tokenizer_entries")) == (None, None)
    other = placed(*words, "checkpoint.load=null", out=out).config
    assert kept_by_run(other) is None


def test_a_run_that_has_saved_nothing_restarts_with_the_newest(base, begun):
    words, out = begun
    shutil.rmtree(out / "checkpoints")
    newest_of(base).rename(iteration_directory(base / "checkpoints", 300))
    changed = saved_settings(RunFolder(out)).differences(placed(*words, out=out).config)
    assert list(changed) == ["tokenizer.tokenizer_model"]


def test_other_weights_do_not_change_the_tokenizer_of_a_resumed_run(base, begun, tmp_path):
    words, out = begun
    other = iteration_directory(tmp_path / "other", 5)
    other.mkdir(parents=True)
    (other / "tokenizer.json").touch()
    again = placed(*words, f"checkpoint.pretrained_checkpoint={tmp_path / 'other'}", out=out).config
    assert list(saved_settings(RunFolder(out)).differences(again)) == ["checkpoint.pretrained_checkpoint"]


TIKTOKEN = {"tiktoken_pattern": "v1", "vocab_size": 900, "tiktoken_num_special_tokens": 9}


@pytest.mark.parametrize(
    ("file", "kind", "saved"),
    [
        ("tokenizer.json", HUGGING_FACE, {"special_tokens": ["<a>"], "vocab_extra_ids": 3}),
        ("tokenizer.json", HUGGING_FACE, {"tokenizer_hf_no_include_special_tokens": True}),
        ("tokenizer.model", "SentencePieceTokenizer", {"vocab_extra_ids": 3}),
        ("tiktoken.json", "TikTokenizer", TIKTOKEN | {"special_tokens": ["<a>"]}),
    ],
)
def test_every_kind_is_taken_with_the_tokens_that_were_added_to_it(file, kind, saved, base, tmp_path):
    folder = newest_of(base)
    (folder / "tokenizer.json").rename(folder / file)
    (folder / "run_config.yaml").write_text(yaml.safe_dump({"tokenizer": saved | {"vocab_file": "gone"}}))
    words = ["lora_tiny", f"checkpoint.pretrained_checkpoint={base}"]
    named = {"tokenizer_type": kind, "tokenizer_model": str(folder / file)}
    assert placed(*words, out=tmp_path).config.tokenizer == TokenizerConfig(**named, **saved)
    mine = placed(*words, "tokenizer.vocab_extra_ids=7", out=tmp_path).config.tokenizer
    assert mine == TokenizerConfig(**named, **saved | {"vocab_extra_ids": 7})
