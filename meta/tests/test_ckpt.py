"""`mb ckpt`: text and JSON output."""

import json
import warnings

import pytest
import torch
import torch.distributed.checkpoint as dcp
from typer.testing import CliRunner

from mb_checkpoint.commit import commit, fsync_and_write_manifest, open_staging
from mb_checkpoint.manifest import Manifest
from mb_checkpoint.train_state import encode_train_state
from mb_trainer.cli import app
from mb_trainer.commands.ckpt import layout_lines


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


def mb(*words):
    done = CliRunner().invoke(app, ["ckpt", *map(str, words)])
    return done.exit_code, done.stdout


def test_ls_names_the_newest_first(run):
    code, out = mb("ls", run, "--json")
    assert (code, [(each["step"], each["tracked"]) for each in json.loads(out)]) == (
        0,
        [(30, True), (20, False), (10, False)],
    )
    assert "newest by the tracker" in mb("ls", run)[1].splitlines()[0]


def test_ls_names_a_temporary_one_from_which_a_run_goes_on(run):
    last = run / "checkpoints" / "iter_0000030"
    (run / "checkpoints" / "non_persistent").mkdir()
    last.rename(run / "checkpoints" / "non_persistent" / last.name)
    assert mb("ls", run)[1].splitlines()[0].endswith("iter_0000030  temporary, whole")
    mb("prune", run, "--keep", 1)
    assert [each["step"] for each in json.loads(mb("ls", run, "--json")[1])] == [30, 20]


def test_show_takes_a_step(run):
    code, out = mb("show", run, "--step", 20)
    assert (code, "step: 20" in out, "weight: float32 [4]" in out) == (0, True, True)
    assert json.loads(mb("show", run, "--json")[1])["manifest"]["layout"] == {"tensor_model_parallel_size": 1}


def test_show_has_a_line_for_each_module_with_ranks_of_its_own():
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
    assert mb("verify", run)[0] == 0
    (data,) = (run / "checkpoints" / "iter_0000020").glob("*.distcp")
    data.write_bytes(data.read_bytes()[:-1] + b"!")
    code, out = mb("verify", run, "--json")
    wrong = {path[-12:]: problems for path, problems in json.loads(out).items() if problems}
    assert (code, wrong) == (1, {"iter_0000020": [f"{data.name} differs from the manifest (SHA-256)"]})


def test_diff_says_in_what(run):
    folder = run / "checkpoints"
    code, out = mb("diff", folder / "iter_0000010", folder / "iter_0000030", "--values")
    assert (code, out.splitlines()) == (
        1,
        [
            f"there: {folder / 'iter_0000010'}",
            f"here: {folder / 'iter_0000030'}",
            "train_state.step: 10 there, 30 here",
            "value.weight: differs by 20 at the most",
        ],
    )
    assert mb("diff", folder, folder)[0] == 0


def test_prune_deletes_the_oldest(run):
    assert "would delete" in mb("prune", run, "--keep", 2, "--dry-run")[1]
    assert mb("prune", run, "--keep", 2)[0] == 0
    assert [each["step"] for each in json.loads(mb("ls", run, "--json")[1])] == [30, 20]


@pytest.mark.parametrize("words", [("ls",), ("show",), ("verify",), ("prune", "--keep", "1")])
def test_a_folder_without_checkpoints_is_an_error(tmp_path, words):
    name, *rest = words
    assert [mb(name, tmp_path / each, *rest)[0] for each in ("none", ".")] == [2, 2]


@pytest.mark.parametrize("words", [("ls",), ("show",), ("verify",), ("prune", "--keep", "1")])
def test_a_run_that_saved_nothing_is_an_error(tmp_path, words):
    for name in ("run_config.yaml", "events.jsonl"):
        (tmp_path / name).touch()
    assert mb(words[0], tmp_path, *words[1:])[0] == 2


def test_a_difference_is_told_from_a_checkpoint_that_cannot_be_read(run, tmp_path):
    assert mb("diff", run, tmp_path / "none")[0] == 2
    assert mb("show", run, "--step", 15)[0] == 2
    assert mb("show", run, "--step", -4)[0] == 2
    one = run / "checkpoints" / "iter_0000020"
    (one / ".metadata").unlink()
    assert (mb("diff", run, one)[0], mb("show", one)[0]) == (2, 2)


@pytest.mark.parametrize("words", [("ls",), ("prune", "--keep", "1")])
def test_one_checkpoint_is_no_folder_of_checkpoints(run, words):
    one = run / "checkpoints" / "iter_0000020"
    done = CliRunner().invoke(app, ["ckpt", words[0], str(one), *words[1:]])
    assert (done.exit_code, done.stderr) == (
        2,
        f"error: {one}: is one checkpoint, and this command is about all that lie beside it. Name {one.parent}.\n",
    )


def test_a_run_folder_stands_for_its_checkpoints_also_where_a_run_starts_from_it(run, tmp_path):
    inside = str(run / "checkpoints")
    for field in ("load", "pretrained_checkpoint"):
        words = ["gpt_tiny", f"checkpoint.{field}={run}", "checkpoint.finetune=true"]
        shown = CliRunner().invoke(app, ["config", "show", *words, f"--out={tmp_path / 'new'}"])
        assert (shown.exit_code, f"  {field}: {inside}\n" in shown.stdout) == (0, True)


def test_a_run_folder_without_checkpoints_is_refused_before_anything_is_loaded(tmp_path):
    for name in ("run_config.yaml", "events.jsonl"):
        (tmp_path / name).touch()
    words = ["check", "checkpoint.finetune=true", f"checkpoint.load={tmp_path}"]
    assert "error CK41" in CliRunner().invoke(app, words).stdout
    words = ["finetune", f"checkpoint.pretrained_checkpoint={tmp_path}", f"--out={tmp_path / 'new'}"]
    assert f"no such folder: {tmp_path}/checkpoints, because" in CliRunner().invoke(app, words).stderr
