"""Program `mb-data`: text to a pair, documents, integrity, statistics, and sample indices ahead of a run."""

import json
import os
import re
import subprocess
import sys

import pytest

pytest.importorskip("rich", reason="needs mb-data[cli]")
pytest.importorskip("typer", reason="needs mb-data[cli]")
pytest.importorskip("yaml", reason="needs mb-data[cli]")
pytest.importorskip("tokenizers", reason="needs mb-data[tokenizers]")

import typer
import yaml
from typer.testing import CliRunner

from mb_data import IndexedWriter, SampleCounts, train_bpe
from mb_data.cli.app import app
from mb_data.cli.index import read_request
from mb_data.errors import PairExistsError, SectionFileError
from mb_schema.commands import exit_codes

TEXTS = ["the quick brown fox", "jumps over the lazy dog " * 3, "again " * 40] * 10


def mb_data(*arguments, program=app):
    done = CliRunner().invoke(program, [str(argument) for argument in arguments], prog_name="mb-data")
    if not isinstance(done.exception, SystemExit | None):
        raise done.exception
    return done.exit_code, done.stdout, done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Folder with a tokenizer and the pair `play`, built by the command."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "text.txt").write_text(" ".join(TEXTS) * 2)
    train_bpe([folder / "text.txt"], vocab_size=270, out=folder / "tokenizer.json")
    (folder / "play.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    code, out, _ = mb_data(*build_arguments(folder), "--json")
    assert (code, json.loads(out)["documents"]) == (0, 30)
    return folder


def build_arguments(folder):
    files = {"--input": "play.jsonl", "--tokenizer": "tokenizer.json", "--out": "play"}
    return [
        "build",
        "--workers",
        1,
        *(word for name, file in files.items() for word in (name, folder / file)),
    ]


@pytest.mark.parametrize("name", ["build", "index", "show", "verify", "stats"])
def test_every_command_has_an_example(name):
    assert f"Example: mb-data {name}" in " ".join(mb_data(name, "--help")[1].split())


def test_build_replaces_a_pair_only_on_request(folder):
    code, _, err = mb_data(*build_arguments(folder))
    advice = "exists already. Choose another --out, or pass --overwrite."
    assert (code, err) == (1, f"error: {folder / 'play'}.bin: {advice}\n")
    code, out, _ = mb_data(*build_arguments(folder), "--overwrite")
    assert (code, out.startswith(f"{folder / 'play'}: 30 documents, ")) == (0, True)
    assert f"  data_path: {folder / 'play'}\n" in out


def shard_arguments(tmp_path, *more):
    lines = "".join(f'{{"text": "document {number % 30}"}}\n' for number in range(60))
    (tmp_path / "a.jsonl").write_text(lines)
    inputs = ["--input", tmp_path / "a.jsonl", "--tokenizer", "ByteTokenizer", "--out", tmp_path / "mine"]
    return ["build", *inputs, "--shard-size", "400B", "--workers", 1, *more]


def test_build_of_shards_resumes_and_is_shown(tmp_path):
    code, out, err = mb_data(*shard_arguments(tmp_path, "--deduplicate", "--min-chars", 11))
    assert (code, err) == (0, "")
    assert f"{tmp_path / 'mine'}: 20 documents, 240 tokens (uint16)\n  4 shards\n" in out
    assert "  dropped 20: shorter than 11 characters\n    document 0\n" in out
    assert "  dropped 20: duplicate\n" in out
    assert f"  data_path: {tmp_path / 'mine'}\n" in out
    _, out, _ = mb_data(*shard_arguments(tmp_path, "--deduplicate", "--min-chars", 11, "--json"))
    result = json.loads(out)
    assert (result["documents"], result["shards"], result["built"]) == (
        20,
        4,
        4,
    )  # the input was written again
    code, out, _ = mb_data("show", tmp_path / "mine", 3, "--tokenizer", "ByteTokenizer")
    assert f"document 3 of 20, 12 tokens, from {tmp_path / 'a.jsonl'}:14\n" in out
    assert mb_data("verify", tmp_path / "mine", "--tokenizer", "ByteTokenizer")[0] == 0
    _, out, _ = mb_data("stats", tmp_path / "mine")
    assert "0.92 bytes of text per token" in out
    assert f"100.00% {'#' * 40} {tmp_path / 'a.jsonl'}\n" in out


def test_stats_show_the_largest_sources(tmp_path):
    for number in range(25):
        (tmp_path / f"{number:02}.txt").write_text("x" * (100 - number))
    arguments = ["--input", tmp_path, "--tokenizer", "ByteTokenizer", "--out", tmp_path / "mine"]
    assert mb_data("build", *arguments, "--shard-size", "1KiB")[0] == 0
    lines = mb_data("stats", tmp_path / "mine")[1].splitlines()
    assert lines[-21].endswith("/00.txt")
    assert lines[-1].endswith(" of 5 other files; --json has all")


def test_a_pair_replaces_shards_and_shards_a_pair_on_request(tmp_path):
    assert mb_data(*shard_arguments(tmp_path))[0] == 0
    pair = shard_arguments(tmp_path)[:7]
    code, _, err = mb_data(*pair)
    assert (code, err.startswith(f"error: {tmp_path / 'mine'}.idx: exists already.")) == (1, True)
    assert mb_data(*pair, "--overwrite")[0] == 0
    assert not (tmp_path / "mine.shards").exists()
    code, _, err = mb_data(*shard_arguments(tmp_path))
    assert (code, err.startswith(f"error: {tmp_path / 'mine'}.bin: exists already.")) == (1, True)
    assert mb_data(*shard_arguments(tmp_path, "--overwrite"))[0] == 0
    assert not (tmp_path / "mine.bin").exists()
    assert mb_data("verify", tmp_path / "mine")[0] == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--shard-size", "much"],
            "--shard-size: 'much' is no size. Write it as 1GiB, 512MiB or a number of bytes.",
        ),
        (
            ["--shard-size", "0"],
            "--shard-size: '0' is no size. Write it as 1GiB, 512MiB or a number of bytes.",
        ),
        (["--bad-lines", "keep"], "--bad-lines: 'keep' is neither stop nor skip. Use one of them."),
    ],
)
def test_build_rejects_options_without_meaning(tmp_path, options, message):
    code, _, err = mb_data(*shard_arguments(tmp_path, *options))
    assert (code, err) == (2, f"error: {message}\n")


def test_a_pair_is_not_written_to_object_storage(tmp_path):
    arguments = shard_arguments(tmp_path)[:5]
    code, _, err = mb_data(*arguments, "--out", "s3://bucket/mine")
    assert (code, "s3://bucket/mine is in object storage, to which only shards are written" in err) == (
        2,
        True,
    )


def test_build_without_a_tokenizer_file(tmp_path):
    (tmp_path / "text.txt").write_text("to be")
    pair = ["--tokenizer", "ByteTokenizer", "--out", tmp_path / "bytes"]
    code, out, err = mb_data("build", "--input", tmp_path / "text.txt", *pair, "--workers", 1)
    assert (code, err) == (0, "")
    assert "1 documents, 6 tokens (uint16)" in out
    assert out.endswith("tokenizer: {tokenizer_type: ByteTokenizer}\n")
    _, out, _ = mb_data("show", tmp_path / "bytes", "--tokenizer", "ByteTokenizer", "--json")
    assert json.loads(out)["text"] == "to be"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "is a folder, but a pair needs a name. Use, for example, {}/mine."),
        ("mine.bin", "has a suffix, which is added. Use {}/mine."),
        ("mine.idx", "has a suffix, which is added. Use {}/mine."),
    ],
)
def test_build_rejects_a_path_that_is_not_a_prefix(name, message, folder, tmp_path):
    code, _, err = mb_data(*build_arguments(folder)[:-1], f"{tmp_path}/{name}")
    assert (code, err) == (2, f"error: --out: {tmp_path}/{name} {message.format(tmp_path)}\n")
    assert not [*tmp_path.iterdir()]


def test_build_does_not_replace_an_index_without_its_tokens(folder, tmp_path):
    (tmp_path / "mine.idx").write_text("something else")
    code, _, err = mb_data(*build_arguments(folder)[:-1], tmp_path / "mine")
    assert (code, err.startswith(f"error: {tmp_path / 'mine'}.idx: exists already.")) == (1, True)


def test_build_names_missing_input(folder):
    arguments = [
        folder / "none" if word == folder / "play.jsonl" else word for word in build_arguments(folder)
    ]
    code, _, err = mb_data(*arguments, "--overwrite")
    assert (code, "none: no such file or folder" in err) == (2, True)


def test_show_gives_the_text_back(folder):
    code, out, _ = mb_data("show", folder / "play", 1, "--tokenizer", folder / "tokenizer.json")
    assert (code, "document 1 of 30" in out, TEXTS[1] + "<|endoftext|>" in out) == (0, True, True)
    plain = json.loads(mb_data("show", folder / "play", "--json")[1])
    assert (plain["document"], plain["documents"], plain["text"]) == (0, 30, None)


def test_show_names_a_missing_document_and_a_missing_pair(folder):
    code, _, err = mb_data("show", folder / "play", 30)
    assert (code, "has no document 30; it has 30" in err) == (2, True)
    code, _, err = mb_data("show", folder / "plya")
    assert (code, "contains play. Correct the path" in err) == (2, True)


def test_verify_finds_tokens_of_another_tokenizer(folder, tmp_path):
    assert mb_data("verify", folder / "play", "--tokenizer", folder / "tokenizer.json")[:2] == (
        0,
        f"{folder / 'play'}: valid\n",
    )
    with IndexedWriter(tmp_path / "wide", dtype="int32") as writer:
        writer.add_document([1, 2, 270])
    words = ["verify", tmp_path / "wide", folder / "play", "--tokenizer", folder / "tokenizer.json", "--json"]
    code, out, _ = mb_data(*words)
    found = json.loads(out)
    assert (code, found[str(folder / "play")]) == (1, [])
    assert "token 2 is 270, but the tokenizer has 270 entries" in found[str(tmp_path / "wide")][0]
    assert mb_data("verify", tmp_path / "none")[0] == 2


def test_verify_examines_every_pair(folder, tmp_path):
    for suffix in ("bin", "idx"):
        content = (folder / f"play.{suffix}").read_bytes()
        (tmp_path / f"short.{suffix}").write_bytes(content[:-2] if suffix == "bin" else content)
    (tmp_path / "half.bin").touch()
    code, out, _ = mb_data("verify", tmp_path / "half", tmp_path / "short", folder / "play")
    half, short, play = out.splitlines()
    assert (code, half.startswith(f"{tmp_path / 'half'}: half.bin exists, but half.idx does not")) == (
        2,
        True,
    )
    assert short.startswith(f"{tmp_path / 'short'}.bin: ")
    assert play == f"{folder / 'play'}: the index is valid; --tokenizer also reads the tokens"
    assert mb_data("verify", tmp_path / "short", folder / "play")[0] == 1


def test_stats_of_a_blend(folder):
    run = ["--train-iters", 10, "--global-batch-size", 4, "--seq-length", 100]
    (found,) = json.loads(mb_data("stats", folder / "play", *run, "--json")[1])
    assert (found["documents"], found["share"], found["epochs"]) == (30, 1.0, 4000 / found["tokens"])
    code, out, _ = mb_data("stats", 30, folder / "play", 70, folder / "play")
    assert (code, "share of the blend 30.0%" in out, "30 documents" in out) == (0, True, True)
    assert mb_data("stats", folder / "play", "--train-iters", 5)[0] == 2
    code, _, err = mb_data("stats", 30, folder / "play", folder / "play", 1)
    assert (code, "dataset.data_path" in err) == (2, True)


def settings(folder, **dataset):
    """Write the settings of a run on the data in the folder, and return the file."""
    section = {
        "_target_": "mb_data.config.GPTDatasetConfig",
        "seq_length": 16,
        "data_path": f"30 {folder / 'play'} 70 {folder / 'play'}",
        "split": "60,20,20",
        "path_to_cache": str(folder / "indices"),
        **dict.fromkeys(("reset_position_ids", "reset_attention_mask", "eod_mask_loss"), False),
    }
    tokenizer = {"tokenizer_type": "HuggingFaceTokenizer", "tokenizer_model": str(folder / "tokenizer.json")}
    sizes = {
        "train": {"train_iters": 6, "global_batch_size": 4},
        "validation": {"eval_interval": 3, "eval_iters": 1},
        "model": {"num_layers": 2},
    }
    file = folder / "run.yaml"
    file.write_text(yaml.safe_dump({"dataset": section | dataset, "tokenizer": tokenizer, **sizes}))
    return file


def test_index_builds_the_indices_of_a_run_once(folder):
    pytest.importorskip("megatron.core", reason="needs mb-data[mcore]")
    index = ["index", "--config", settings(folder), "--json"]
    code, out, err = mb_data(*index)
    assert code == 0, err
    samples = json.loads(out)["samples"]
    assert all(samples[split] >= wanted for split, wanted in (("train", 24), ("valid", 12), ("test", 4)))
    built = {file: file.stat().st_mtime_ns for file in (folder / "indices").rglob("*.npy")}
    assert built
    assert mb_data(*index)[1] == out
    assert {file: file.stat().st_mtime_ns for file in (folder / "indices").rglob("*.npy")} == built


def test_index_of_an_evaluation_only_run_has_the_samples_of_one_evaluation(folder):
    pytest.importorskip("torch")
    from mb_data.cli.index import read_request

    file = settings(folder)
    other = folder / "other.yaml"
    other.write_text("validation: {skip_train: true, eval_interval: null, eval_iters: 3}\n")
    assert read_request([file, other]).counts.valid == 3 * 4


def test_index_counts_validation_sets_together(folder):
    pytest.importorskip("megatron.core", reason="needs mb-data[mcore]")
    blend_per_split = [None, [[str(folder / "play")], None], None]
    file = settings(folder, data_path=None, split=None, blend_per_split=blend_per_split)
    (folder / "sets.yaml").write_text(
        "train: {train_iters: 0}\nvalidation: {full_validation: true, eval_iters: 0}\n"
    )
    code, out, _ = mb_data("index", "--config", file, "--config", folder / "sets.yaml", "--json")
    samples = json.loads(out)["samples"]
    assert (code, samples["train"], samples["test"], samples["valid"] > 20) == (0, 0, 0, True)


def test_index_rejects_bad_data(folder):
    code, _, err = mb_data("index", "--config", settings(folder, split="60,nothing"))
    assert (code, "dataset.split" in err) == (1, True)
    code, _, err = mb_data("index", "--config", settings(folder, data_path=str(folder / "none")))
    assert (code, "no such" in err) == (2, True)
    sums = settings(folder)
    sums.write_text(
        "dataset: {_target_: mb_data.SumsFinetuningConfig, seq_length: 64}\n"
        "train: {train_iters: 6, global_batch_size: 4}"
    )
    code, _, err = mb_data("index", "--config", sums)
    assert (code, "a SumsFinetuningConfig has no sample indices" in err) == (1, True)


def test_index_reads_settings_from_several_files(folder, tmp_path):
    second = tmp_path / "second.yaml"
    second.write_text("dataset: {seq_length: 32}\ntrain: {train_samples: 100}\n")
    request = read_request([settings(folder), second])
    assert (request.name, request.section.seq_length) == ("second", 32)
    assert request.counts == SampleCounts(train=100, valid=12, test=4)


GENERATED = "dataset: {_target_: mb_data.config.MockGPTDatasetConfig, seq_length: 16}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "none.yaml: no such file"),
        ("a: [", "is not a YAML file"),
        ("a: !!int x", "is not a YAML file"),
        ("- a", "is not a mapping of sections"),
        ("dataset: {seq_length: 3}", "dataset._target_: None is not a section of mb-data"),
        ("dataset: {_target_: os.system}", "dataset._target_: 'os.system' is not a section of mb-data"),
        ("dataset: {_target_: mb_data.config.GPTDatasetConfig}", "seq_length"),
        ("dataset: {_target_: mb_data.config.GPTDatasetConfig, seq_lengt: 3}", "seq_lengt"),
        (GENERATED, "train: has no fields, but the number of samples depends on"),
        (
            f"{GENERATED}\ntrain: {{train_iter: 9, global_batch_size: 4}}",
            "train: has train_iter, global_batch_size",
        ),
        (f"{GENERATED}\ntrain: {{train_iters: many}}", "train.train_iters: expected int"),
        (
            f"{GENERATED}\ntrain: {{train_iters: 9, step_batch_size_schedule: '0:4 1K:8'}}",
            "train.step_batch_size_schedule: is set, but the number of samples follows from its batch sizes",
        ),
        (
            f"{GENERATED}\ntrain: {{train_iters: 9, global_batch_size: 4}}\nvalidation: {{eval_iters: few}}",
            "validation.eval_iters: expected int",
        ),
        (
            f"{GENERATED.replace('16', 'long')}\ntrain: {{train_iters: 9, global_batch_size: 4}}",
            "none.yaml: dataset.seq_length: expected int, not 'long', because the field does not accept this value. "
            "Set a value of the expected type.",
        ),
    ],
)
def test_settings_that_cannot_be_read_are_bad_input(text, message, tmp_path):
    file = tmp_path / "none.yaml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(SectionFileError, match=re.escape(message)) as caught:
        read_request([file])
    assert caught.value.bad_input


def test_recipes_need_a_trainer():
    code, _, err = mb_data("index", "gpt_tiny")
    assert (code, "only YAML files can be read here (arguments: gpt_tiny)" in err) == (2, True)


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (PairExistsError("a: exists"), 1, "error: a: exists\n"),
        (
            PermissionError(13, "Permission denied", "/data/a"),
            2,
            "error: /data/a: cannot be used (Permission denied). Name another path, or change who may use it.\n",
        ),
    ],
)
def test_exit_codes(error, code, message, capsys):
    with pytest.raises(typer.Exit) as caught, exit_codes():
        raise error
    assert (caught.value.exit_code, capsys.readouterr().err) == (code, message)


def test_other_errors_keep_their_traceback():
    with pytest.raises(OSError, match="disk"), exit_codes():
        raise OSError("disk")


def test_the_module_is_the_program(tmp_path):
    command = [sys.executable, "-m", "mb_data", "show", str(tmp_path / "none")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stdout) == (2, "")
    assert "no such .bin/.idx pair" in done.stderr
