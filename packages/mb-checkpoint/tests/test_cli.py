"""Program `mb-checkpoint`: text and JSON output, and exit codes."""

import json
import warnings

import pytest

pytest.importorskip("rich", reason="needs mb-checkpoint[cli]")
pytest.importorskip("typer", reason="needs mb-checkpoint[cli]")

import errno

import torch
import torch.distributed.checkpoint as dcp
import typer
from typer.testing import CliRunner

from mb_checkpoint import TorchCheckpointer
from mb_checkpoint.cli.app import app
from mb_checkpoint.cli.text import format_bytes, layout_lines
from mb_checkpoint.errors import CheckpointFolderError
from mb_checkpoint.formats.manifest import Manifest
from mb_checkpoint.save.commit import commit, fsync_and_write_manifest, open_staging
from mb_checkpoint.state.train_state import encode_train_state
from mb_schema.commands import exit_codes


@pytest.fixture
def run(tmp_path):
    """Return a run folder with checkpoints of three steps."""
    root = tmp_path / "run" / "checkpoints"
    for step in (10, 20, 30):
        staging = open_staging(root, step)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dcp.save({"weight": torch.full((4,), float(step))}, checkpoint_id=staging, no_dist=True)
        (staging / "metadata.json").write_text(
            '{"sharded_backend": "torch_dist", "sharded_backend_version": 1}'
        )
        (staging / "train_state.pt").write_bytes(encode_train_state({"step": step}))
        fsync_and_write_manifest(
            staging, Manifest(step=step, files=(), layout={"tensor_model_parallel_size": 1})
        )
        commit(root, step, staging)
    (root.parent / "run_config.yaml").touch()
    (root.parent / "events.jsonl").touch()
    return root.parent


def mb_checkpoint(*arguments):
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return done.exit_code, done.stdout


def test_stored_marks_the_best(tmp_path):
    storage, run = str(tmp_path / "storage"), tmp_path / "run"
    with TorchCheckpointer(
        run, {"model": torch.nn.Linear(1, 1)}, best_metric="loss", log=lambda _line: None
    ) as checkpointer:
        for step, loss in ((10, 1.0), (20, 2.0)):
            checkpointer.save(step, loss=loss)
            mb_checkpoint("upload", run, storage)
    code, out = mb_checkpoint("stored", storage, "--json")
    assert (code, {each["step"]: each["best"] for each in json.loads(out)}) == (0, {20: None, 10: "loss 1"})
    assert [line.endswith("best: loss 1") for line in mb_checkpoint("stored", storage)[1].splitlines()] == [
        False,
        True,
    ]


def test_ls_names_the_newest_first(run):
    code, out = mb_checkpoint("ls", run, "--json")
    assert (code, [(each["step"], each["tracked"]) for each in json.loads(out)]) == (
        0,
        [(30, True), (20, False), (10, False)],
    )
    assert "newest by the tracker" in mb_checkpoint("ls", run)[1].splitlines()[0]


def test_ls_lists_a_non_persistent_checkpoint(run):
    last = run / "checkpoints" / "iter_0000030"
    (run / "checkpoints" / "non_persistent").mkdir()
    last.rename(run / "checkpoints" / "non_persistent" / last.name)
    assert mb_checkpoint("ls", run)[1].splitlines()[0].endswith("iter_0000030  non-persistent, complete")
    mb_checkpoint("prune", run, "--keep", 1)
    assert [each["step"] for each in json.loads(mb_checkpoint("ls", run, "--json")[1])] == [30, 20]


def test_show_takes_a_step(run):
    code, out = mb_checkpoint("show", run, "--step", 20)
    assert (code, "step: 20" in out, "weight: float32 [4]" in out) == (0, True, True)
    assert json.loads(mb_checkpoint("show", run, "--json")[1])["manifest"]["layout"] == {
        "tensor_model_parallel_size": 1
    }


def test_show_has_a_line_for_each_module_with_separate_ranks():
    layout = {
        "vision.tensor_model_parallel_size": 1,
        "vision.first_rank": 0,
        "language.first_rank": 1,
        "world_size": 2,
    }
    assert layout_lines(layout) == [
        "  layout of vision: tensor_model_parallel_size=1, first_rank=0",
        "  layout of language: first_rank=1",
        "  layout: world_size=2",
    ]


def test_verify_finds_a_flipped_bit(run):
    assert mb_checkpoint("verify", run)[0] == 0
    (data,) = (run / "checkpoints" / "iter_0000020").glob("*.distcp")
    data.write_bytes(data.read_bytes()[:-1] + b"!")
    code, out = mb_checkpoint("verify", run, "--json")
    wrong = {path[-12:]: problems for path, problems in json.loads(out).items() if problems}
    assert (code, wrong) == (1, {"iter_0000020": [f"{data.name} differs from the manifest (checksum)"]})


def test_diff_lists_the_differences(run):
    folder = run / "checkpoints"
    code, out = mb_checkpoint("diff", folder / "iter_0000010", folder / "iter_0000030", "--values")
    assert (code, out.splitlines()) == (
        1,
        [
            f"old: {folder / 'iter_0000010'}",
            f"new: {folder / 'iter_0000030'}",
            "train_state.step: 10 -> 30",
            "value.weight: differs by at most 20",
        ],
    )
    assert mb_checkpoint("diff", folder, folder)[0] == 0


def test_prune_deletes_the_oldest(run):
    assert "would delete" in mb_checkpoint("prune", run, "--keep", 2, "--dry-run")[1]
    assert mb_checkpoint("prune", run, "--keep", 2)[0] == 0
    assert [each["step"] for each in json.loads(mb_checkpoint("ls", run, "--json")[1])] == [30, 20]


@pytest.mark.parametrize("arguments", [("ls",), ("show",), ("verify",), ("prune", "--keep", "1")])
def test_a_folder_without_checkpoints_is_an_error(tmp_path, arguments):
    name, *rest = arguments
    assert [mb_checkpoint(name, tmp_path / each, *rest)[0] for each in ("none", ".")] == [2, 2]


@pytest.mark.parametrize("arguments", [("ls",), ("show",), ("verify",), ("prune", "--keep", "1")])
def test_a_run_that_saved_nothing_is_an_error(tmp_path, arguments):
    for name in ("run_config.yaml", "events.jsonl"):
        (tmp_path / name).touch()
    assert mb_checkpoint(arguments[0], tmp_path, *arguments[1:])[0] == 2


def test_a_difference_is_distinguished_from_a_checkpoint_that_cannot_be_read(run, tmp_path):
    assert mb_checkpoint("diff", run, tmp_path / "none")[0] == 2
    assert mb_checkpoint("show", run, "--step", 15)[0] == 2
    assert mb_checkpoint("show", run, "--step", -4)[0] == 2
    one = run / "checkpoints" / "iter_0000020"
    (one / ".metadata").unlink()
    assert (mb_checkpoint("diff", run, one)[0], mb_checkpoint("show", one)[0]) == (2, 1)


def stderr_of(*arguments):
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return done.exit_code, done.stderr


def test_a_step_that_is_not_there_is_named_with_those_that_are(run):
    assert stderr_of("show", run, "--step", 15) == (
        2,
        f"error: {run / 'checkpoints'}: no checkpoint of step 15; steps: 30, 20, 10. Name one of them.\n",
    )


def test_a_folder_of_another_program_is_recognized(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").touch()
    code, error = stderr_of("ls", tmp_path)
    assert (code, error.startswith(f"error: {tmp_path}: holds a model in Hugging Face format. ")) == (2, True)


def test_a_file_is_not_a_folder(tmp_path):
    (tmp_path / "file").touch()
    assert stderr_of("ls", tmp_path / "file") == (
        2,
        f"error: {tmp_path / 'file'}: is a file. Name a run's folder, such as runs/gpt_tiny.\n",
    )


@pytest.mark.parametrize(("name", "problem"), [("none", "does not exist"), ("run_config.yaml", "is a file")])
def test_only_an_existing_folder_can_be_trusted(run, name, problem):
    code, error = stderr_of("ls", run, "--trust", run / name)
    assert (code, problem in " ".join(error.replace("│", "").split())) == (2, True)


@pytest.mark.parametrize("arguments", [("ls",), ("prune", "--keep", "1")])
def test_one_checkpoint_is_not_a_folder_of_checkpoints(run, arguments):
    one = run / "checkpoints" / "iter_0000020"
    done = CliRunner().invoke(app, [arguments[0], str(one), *arguments[1:]])
    assert (done.exit_code, done.stderr) == (
        2,
        f"error: {one}: is one checkpoint, and this command reads all checkpoints of a folder. Name {one.parent}.\n",
    )


def test_help_names_the_program_in_its_example():
    assert "Example: mb-checkpoint ls runs/gpt_tiny" in help_of(app, "ls")
    program = typer.Typer()
    program.callback()(lambda: None)
    program.add_typer(app, name="ckpt")
    assert "Example: mb ckpt ls runs/gpt_tiny" in help_of(program, "ckpt", "ls", name="mb")


def help_of(program, *command, name="mb-checkpoint"):
    return CliRunner().invoke(program, [*command, "--help"], prog_name=name).stdout


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (CheckpointFolderError("/c: no space"), 1, "error: /c: no space\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (
            OSError(errno.EACCES, "Permission denied", "/c"),
            2,
            "error: /c: cannot be used (Permission denied). Name another path, or change who may use it.\n",
        ),
    ],
)
def test_an_error_of_the_user_is_one_message_and_an_exit_code(capsys, error, code, message):
    with pytest.raises(typer.Exit) as left, exit_codes():
        raise error
    assert (left.value.exit_code, capsys.readouterr().err) == (code, message)


def test_other_errors_keep_their_traceback():
    with pytest.raises(OSError, match="Input/output"), exit_codes():
        raise OSError(errno.EIO, "Input/output error", "/c")


def test_sizes_have_a_unit():
    assert [format_bytes(count) for count in (7, 2048, 3 << 30)] == ["7 B", "2.0 KiB", "3.0 GiB"]


def test_a_trusted_folder_is_trusted_within_the_command_only(run):
    from mb_checkpoint.formats.trust import is_trusted

    assert mb_checkpoint("ls", run, "--trust", run)[0] == 0
    assert not is_trusted(run)


def test_checkpoints_are_copied_to_a_storage_and_back(run, tmp_path):
    storage, copy = tmp_path / "storage", tmp_path / "copy"
    assert mb_checkpoint("stored", storage) == (0, f"{storage}: no checkpoint\n")
    code, out = mb_checkpoint("upload", run, storage)
    assert code == 0
    assert ": copied " in out
    code, out = mb_checkpoint("stored", storage, "--json")
    assert (code, [each["step"] for each in json.loads(out)]) == (0, [30])
    assert mb_checkpoint("fetch", storage, copy) == (0, f"fetched {copy}/iter_0000030\n")
    assert mb_checkpoint("ls", copy)[0] == 0
    assert mb_checkpoint("fetch", storage, copy, "--step", "5")[0] == 2
    assert mb_checkpoint("stored", "nonsense://bucket")[0] == 1
