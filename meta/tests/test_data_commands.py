"""`mb data index|show|verify|stats` on data written by `mb data build`."""

import json

import pytest
from typer.testing import CliRunner

from mb_data import IndexedWriter, train_bpe
from mb_trainer.cli import app

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


def test_show_gives_the_text_back(folder):
    code, out, _ = mb("show", folder / "play", 1, "--tokenizer", folder / "tokenizer.json")
    assert (code, "document 1 of 30" in out, TEXTS[1] + "<|endoftext|>" in out) == (0, True, True)
    plain = json.loads(mb("show", folder / "play", "--json")[1])
    assert (plain["document"], plain["documents"], plain["text"]) == (0, 30, None)


def test_show_names_a_document_and_a_pair_that_are_not_there(folder):
    code, _, err = mb("show", folder / "play", 30)
    assert (code, "has no document 30; it has 30" in err) == (2, True)
    code, _, err = mb("show", folder / "plya")
    assert (code, "contains play. Correct the path" in err) == (2, True)


def test_verify_finds_tokens_of_another_tokenizer(folder, tmp_path):
    assert mb("verify", folder / "play", "--tokenizer", folder / "tokenizer.json")[:2] == (
        0,
        f"{folder / 'play'}: whole\n",
    )
    with IndexedWriter(tmp_path / "wide", dtype="int32") as writer:
        writer.add_document([1, 2, 270])
    words = ["verify", tmp_path / "wide", folder / "play", "--tokenizer", folder / "tokenizer.json", "--json"]
    code, out, _ = mb(*words)
    found = json.loads(out)
    assert (code, found[str(folder / "play")]) == (1, [])
    assert "token 2 is 270, but the tokenizer has 270 entries" in found[str(tmp_path / "wide")][0]
    assert mb("verify", tmp_path / "none")[0] == 2


def test_stats_of_a_blend(folder):
    run = ["--train-iters", 10, "--global-batch-size", 4, "--seq-length", 100]
    (found,) = json.loads(mb("stats", folder / "play", *run, "--json")[1])
    assert (found["documents"], found["share"], found["epochs"]) == (30, 1.0, 4000 / found["tokens"])
    code, out, _ = mb("stats", 30, folder / "play", 70, folder / "play")
    assert (code, "share of the blend 30.0%" in out, "30 documents" in out) == (0, True, True)
    assert mb("stats", folder / "play", "--train-iters", 5)[0] == 2
    code, _, err = mb("stats", 30, folder / "play", folder / "play", 1)
    assert (code, "dataset.data_path" in err) == (2, True)


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
    told = []
    context = DatasetBuildContext(
        train_samples=24,
        valid_samples=12,
        test_samples=4,
        tokenizer=load_tokenizer(folder / "tokenizer.json"),
        progress=lambda *news: told.append(news),
    )
    build_gpt_datasets(config, context)
    assert {file: file.stat().st_mtime_ns for file in (folder / "indices").rglob("*.npy")} == built
    assert told == [("build sample indices", number, 6) for number in range(1, 7)]


def test_index_refuses_data_that_are_not_sound(folder):
    code, _, err = mb("index", "gpt_tiny", "--config", described(folder, split="60,nothing"))
    assert (code, "dataset.split" in err) == (1, True)
    code, _, err = mb("index", "gpt_tiny", "--config", described(folder, data_path=str(folder / "none")))
    assert code == 2
    assert "no such .bin/.idx pair" in err


def test_index_says_where_there_is_none():
    without_files = ["tokenizer.tokenizer_type=NullTokenizer", "tokenizer.tokenizer_model=null"]
    code, _, err = mb("index", "sft_tiny", *without_files, "tokenizer.vocab_size=300")
    assert (code, "has no sample indices" in err) == (1, True)
