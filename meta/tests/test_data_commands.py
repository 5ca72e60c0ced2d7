"""`mb data`: the commands of mb-data, and `index` with a recipe."""

import json

import pytest
from typer.testing import CliRunner

from mb_data import train_bpe
from mb_trainer.cli.app import app

TEXTS = ["the quick brown fox", "jumps over the lazy dog " * 3, "again " * 40] * 10


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with a tokenizer and the pair `play`, built by the command."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "text.txt").write_text(" ".join(TEXTS) * 2)
    train_bpe([folder / "text.txt"], vocab_size=270, out=folder / "tokenizer.json")
    (folder / "play.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    words = [
        "--input",
        folder / "play.jsonl",
        "--tokenizer",
        folder / "tokenizer.json",
        "--out",
        folder / "play",
    ]
    code, out, _ = mb("build", *words, "--workers", 1, "--json")
    assert (code, json.loads(out)["documents"]) == (0, 30)
    return folder


def mb(*words):
    done = CliRunner().invoke(app, ["data", *map(str, words)])
    if not isinstance(done.exception, SystemExit | None):
        raise done.exception
    return done.exit_code, done.stdout, done.stderr


@pytest.mark.parametrize("name", ["build", "index", "show", "verify", "stats"])
def test_every_command_has_an_example(name):
    assert f"Example: mb data {name}" in " ".join(mb(name, "--help")[1].split())


def described(folder, **more):
    """Write a configuration for the data in the folder, and return its file."""
    import yaml

    dataset = {
        "_target_": "mb_data.config.GPTDatasetConfig",
        "seq_length": 16,
        "data_path": f"30 {folder / 'play'} 70 {folder / 'play'}",
        "split": "60,20,20",
        "path_to_cache": str(folder / "indices"),
        **dict.fromkeys(("reset_position_ids", "reset_attention_mask", "eod_mask_loss"), False),
    }
    tokenizer = {"tokenizer_type": "HuggingFaceTokenizer", "tokenizer_model": str(folder / "tokenizer.json")}
    path = folder / "run.yaml"
    sizes = {"model": {"seq_length": 16}, "train": {"train_iters": 6, "global_batch_size": 4}}
    path.write_text(yaml.safe_dump({"dataset": dataset | more, "tokenizer": tokenizer, **sizes}))
    return path


def test_index_builds_what_the_datasets_of_a_run_find(folder):
    from mb_data import DatasetBuildContext, GPTDatasetConfig, build_gpt_datasets, load_tokenizer

    path = described(folder)
    words = ["index", "gpt_tiny", "--config", path, "validation.eval_interval=3", "validation.eval_iters=1"]
    code, out, err = mb(*words, "--json")
    assert code == 0, err
    samples = json.loads(out)["samples"]
    assert [samples[split] >= wanted for split, wanted in (("train", 24), ("valid", 12), ("test", 4))] == [
        True
    ] * 3
    built = {file: file.stat().st_mtime_ns for file in (folder / "indices").rglob("*.npy")}
    assert built
    config = GPTDatasetConfig(
        seq_length=16,
        data_path=f"30 {folder / 'play'} 70 {folder / 'play'}",
        split="60,20,20",
        path_to_cache=str(folder / "indices"),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
    )
    reported = []
    context = DatasetBuildContext(
        train_samples=24,
        valid_samples=12,
        test_samples=4,
        tokenizer=load_tokenizer(folder / "tokenizer.json"),
        progress=lambda *news: reported.append(news),
    )
    build_gpt_datasets(config, context)
    assert {file: file.stat().st_mtime_ns for file in (folder / "indices").rglob("*.npy")} == built
    assert reported == [("build sample indices", 6, 6)]  # all found at once


def test_index_refuses_data_that_are_not_sound(folder):
    code, _, err = mb("index", "gpt_tiny", "--config", described(folder, split="60,nothing"))
    assert (code, "dataset.split" in err) == (1, True)
    code, _, err = mb("index", "gpt_tiny", "--config", described(folder, data_path=str(folder / "none")))
    assert code == 2
    assert "no such .bin/.idx pair" in err


def test_index_reports_a_dataset_without_indices():
    without_files = ["tokenizer.tokenizer_type=NullTokenizer", "tokenizer.tokenizer_model=null"]
    code, _, err = mb("index", "sft_tiny", *without_files, "tokenizer.vocab_size=300")
    assert (code, "has no sample indices" in err) == (1, True)
