"""Command line: help texts, one clear error for each kind of bad input, and no files written."""

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from mb_trainer.cli.app import app
from mb_trainer.recipes import RECIPES

COMMANDS = [["pretrain"], ["bench"], ["sample"], ["report"], ["watch"], ["recipes"], ["data", "build"]]


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    """Run in an empty folder, outside any launcher."""
    monkeypatch.chdir(tmp_path)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def mb(*words):
    return CliRunner().invoke(app, words)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_explains_itself_with_an_example(command):
    assert f"Example: mb {' '.join(command)}" in " ".join(mb(*command, "--help").stdout.split())


def test_help_names_every_command():
    assert all(command[0] in mb("--help").stdout for command in COMMANDS)


def test_the_version_is_printed_without_loading_torch():
    code = (
        "import sys; from typer.testing import CliRunner; from mb_trainer.cli.app import app;"
        "print(CliRunner().invoke(app, ['--version']).stdout, end=''); sys.exit('torch' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    names = [line.split()[0] for line in result.stdout.splitlines()]
    assert (result.returncode, names[0]) == (0, "mb-trainer")
    assert {"mb-config", "mb-verify", "torch"} < set(names)


def test_recipes_are_listed_one_a_line():
    assert [line.split()[0] for line in mb("recipes").stdout.splitlines()] == [*RECIPES]


CANNOT_BE_READ = [
    (["gpt_tinny"], "gpt_tinny: is neither a recipe nor a YAML file. Nearest: gpt_tiny"),
    (["missing.yaml"], "missing.yaml"),
    (["train.train_itres=5"], "train.train_itres: no such field; did you mean train.train_iters"),
    (["trian.train_iters=5"], "did you mean train"),
    (["train.train_iters=abc"], "train.train_iters: expected int or null, not 'abc'"),
    (["optimizer.lr=fast"], "optimizer.lr: expected float or null, not 'fast'"),
    (["mixed_precision=bf17"], "mixed_precision: unknown recipe 'bf17'. Use one of bf16_mixed"),
    (["dataset.sources=[nowhere]"], "dataset.sources: nowhere does not exist"),
    (["dataset.sources=[/dev/null]"], "dataset.sources: ['/dev/null'] contain no text"),
    (["--config", "missing.yaml"], "missing.yaml"),
]


@pytest.mark.parametrize(("words", "message"), CANNOT_BE_READ, ids=lambda value: str(value)[:40])
def test_what_cannot_be_read_is_exit_code_2(words, message, empty_folder):
    result = mb("pretrain", *words)
    assert (result.exit_code, list(empty_folder.iterdir())) == (2, [])
    assert message in result.stderr
    assert result.stderr.startswith("error: ")


INTERLEAVED = ["model.pipeline_model_parallel_size=2", "model.virtual_pipeline_model_parallel_size=2"]

MUST_NOT_BE_DONE = [
    (["train.global_batch_size=7"], "train.global_batch_size: 7 is not a multiple of 8"),
    (["model.tensor_model_parallel_size=2"], "1 process is not a multiple of tp x pp x cp = 2 x 1 x 1"),
    (["checkpoint.save=/proc/nothing"], "checkpoint.save: cannot write checkpoints to /proc/nothing"),
    (["model.seq_length=128"], "seq_length"),
    (
        [*INTERLEAVED, "--nproc", "2", "model.batch_p2p_comm=true"],
        "two interleaved stages with batched sends train incorrectly",
    ),
    (
        ["profiling.use_pytorch_profiler=true", "profiling.use_nsys_profiler=true"],
        "profiling.use_pytorch_profiler",
    ),
]


@pytest.mark.parametrize(("words", "message"), MUST_NOT_BE_DONE, ids=lambda value: str(value)[:40])
def test_what_must_not_be_done_is_exit_code_1(words, message, empty_folder):
    result = mb("pretrain", *words)
    assert (result.exit_code, list(empty_folder.iterdir())) == (1, [])
    assert message in result.stderr


def test_every_problem_is_reported_at_once():
    result = mb("pretrain", "train.global_batch_size=7", "model.num_query_groups=3", "model.seq_length=128")
    assert result.exit_code == 1
    assert all(
        text in result.stderr for text in ("train.global_batch_size", "num_query_groups", "seq_length")
    )


INDEXED = """
dataset:
  _target_: mb_data.config.GPTDatasetConfig
  seq_length: 256
  data_path: tokens
  split: "100,0,0"
  reset_position_ids: false
  reset_attention_mask: false
  eod_mask_loss: false
tokenizer: {tokenizer_type: ByteTokenizer}
"""


def damage_nothing_there(folder):
    (folder / "tokens.idx").unlink()
    (folder / "tokens.bin").unlink()


def damage_no_index(folder):
    (folder / "tokens.idx").unlink()


def damage_header(folder):
    (folder / "tokens.idx").write_bytes(b"not an index at all")


def damage_length(folder):
    (folder / "tokens.bin").write_bytes((folder / "tokens.bin").read_bytes()[:10])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (damage_nothing_there, "tokens"),
        (damage_no_index, "tokens.idx"),
        (damage_header, "tokens.idx"),
        (damage_length, "tokens.bin"),
    ],
    ids=lambda value: getattr(value, "__name__", "")[7:],
)
def test_damaged_data_is_exit_code_2(damage, message, empty_folder):
    (empty_folder / "text.txt").write_text("some text to train on " * 50)
    (empty_folder / "run.yaml").write_text(INDEXED)
    write_tokens(empty_folder)
    damage(empty_folder)
    before = sorted(empty_folder.iterdir())
    result = mb("pretrain", "--config", "run.yaml")
    assert (result.exit_code, sorted(empty_folder.iterdir())) == (2, before)
    assert message in result.stderr


def write_tokens(folder):
    from mb_data.text.indexed import IndexedWriter, token_dtype

    with IndexedWriter(folder / "tokens", dtype=token_dtype(257)) as writer:
        writer.add_document(list(range(200)))


def test_an_empty_prompt_is_a_usage_error(empty_folder):
    result = mb("sample", str(empty_folder), "--prompt", "")
    assert result.exit_code == 2
    assert "must not be empty" in result.stderr


def test_a_tokenizer_that_is_not_there_is_exit_code_2(empty_folder):
    (empty_folder / "text.txt").write_text("text")
    result = mb("data", "build", "--input", "text.txt", "--tokenizer", "none.json", "--out", "tokens")
    assert result.exit_code == 2
    assert "none.json" in result.stderr


def test_data_build_writes_what_the_trainer_reads(empty_folder):
    from mb_data import train_bpe, verify_prefix

    text = empty_folder / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog " * 100)
    train_bpe([text], vocab_size=270, out=empty_folder / "tokenizer.json")
    words = ["--input", "text.txt", "--tokenizer", "tokenizer.json", "--out", "out/tokens", "--workers", "1"]
    result = mb("data", "build", *words)
    assert result.exit_code == 0
    assert verify_prefix("out/tokens").documents == 1
    assert "1 documents" in result.stdout
    again = mb("data", "build", *words)
    assert (again.exit_code, "exists already" in again.stderr) == (1, True)
    assert mb("data", "build", *words, "--overwrite").exit_code == 0


def test_bad_input_is_reported_without_loading_torch():
    code = (
        "import sys; from typer.testing import CliRunner; from mb_trainer.cli.app import app;"
        "CliRunner().invoke(app, ['pretrain', 'train.global_batch_size=7']); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
