"""No command executes what a checkpoint or a run folder contains: a payload in each file, through each command."""

import os
import pickle
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from runs import train_here
from typer.testing import CliRunner

from mb_checkpoint import UnsafeCheckpointError
from mb_checkpoint.formats.manifest import encode_manifest, hash_file, read_manifest
from mb_checkpoint.formats.unpickling import read_metadata
from mb_trainer.cli.app import app

LAST = "checkpoints/iter_0000002"


class Payload:
    """Makes a folder when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


@pytest.fixture(scope="module")
def words(overrides):
    return [*overrides, "train.train_iters=2", "checkpoint.save_interval=2", "validation.eval_iters=0"]


@pytest.fixture(scope="module")
def base(words, tmp_path_factory):
    """The folder of a run of two steps."""
    out = tmp_path_factory.mktemp("base") / "run"
    train_here(words, out)
    return out


@pytest.fixture
def run(base, tmp_path):
    return shutil.copytree(base, tmp_path / "run")


def into_the_index(checkpoint, payload):
    (checkpoint / ".metadata").write_bytes(pickle.dumps(payload))


def into_an_object(checkpoint, payload):
    """Put it in place of the random state, in a separate data file that the index names."""
    index = read_metadata(checkpoint)
    entry = next(each for each in index.storage_data if each.fqn.startswith("rng_state"))
    torch.save(payload, checkpoint / "payload.distcp")
    piece = index.storage_data[entry]
    piece.relative_path, piece.offset = "payload.distcp", 0
    piece.length = (checkpoint / "payload.distcp").stat().st_size
    (checkpoint / ".metadata").write_bytes(pickle.dumps(index))


def into_the_counters(checkpoint, payload):
    torch.save(payload, checkpoint / "train_state.pt")


def into_the_tracker(checkpoint, payload):
    torch.save(payload, checkpoint.parent / "latest_train_state.pt")


FILES = {
    ".metadata": into_the_index,
    "*.distcp": into_an_object,
    "train_state.pt": into_the_counters,
    "latest_train_state.pt": into_the_tracker,
}


def without_manifest(checkpoint):
    (checkpoint / "manifest.json").unlink()


def sealed_again(checkpoint):
    """Write the manifest that fits the changed files, as someone who wants to hide the change would."""
    old = read_manifest(checkpoint)
    names = sorted(path.name for path in checkpoint.iterdir() if path.name != "manifest.json")
    entries = tuple(hash_file(checkpoint / name, name=name) for name in names)
    (checkpoint / "manifest.json").write_bytes(encode_manifest(replace(old, files=entries)))


MANIFESTS = {"as it was": lambda checkpoint: None, "gone": without_manifest, "sealed again": sealed_again}

READING = {
    "ckpt ls": lambda run, out: ["ckpt", "ls", run],
    "ckpt show": lambda run, out: ["ckpt", "show", run],
    "ckpt verify": lambda run, out: ["ckpt", "verify", run],
    "ckpt diff": lambda run, out: ["ckpt", "diff", run, run, "--values"],
    "ckpt prune": lambda run, out: ["ckpt", "prune", run, "--keep", "1", "--dry-run"],
    "report": lambda run, out: ["report", run, "--out", out / "report.html"],
}
LOADING = {
    "sample": lambda run, out: ["sample", run, "--tokens", "1"],
    "export-hf": lambda run, out: ["export-hf", run, "--out", out / "hf"],
}


@pytest.mark.parametrize("manifest", MANIFESTS)
@pytest.mark.parametrize("file", FILES)
def test_no_command_executes_what_a_checkpoint_holds(run, tmp_path, file, manifest):
    marker = tmp_path / "executed"
    FILES[file](run / LAST, Payload(marker))
    MANIFESTS[manifest](run / LAST)
    commands = {**READING, **LOADING} if manifest != "as it was" else READING
    for name, arguments in commands.items():
        answer = CliRunner().invoke(app, [str(word) for word in arguments(run, tmp_path / "out")])
        assert not marker.exists(), name
        assert isinstance(answer.exception, SystemExit | None), (name, answer.exception)


@pytest.mark.parametrize("file", [".metadata", "*.distcp", "train_state.pt"])
def test_a_resume_executes_nothing_and_reports_what_it_rejected(words, run, tmp_path, file):
    marker = tmp_path / "executed"
    FILES[file](run / LAST, Payload(marker))
    sealed_again(run / LAST)
    longer = [*words, "train.train_iters=3"]
    with pytest.raises((UnsafeCheckpointError, OSError, ValueError), match=r"mkdir|train_state"):
        train_here(longer, run, resume_with_changes=True)
    assert not marker.exists()


def test_a_resume_passes_over_a_tracker_that_names_code(words, run, tmp_path):
    marker = tmp_path / "executed"
    FILES["latest_train_state.pt"](run / LAST, Payload(marker))
    assert train_here([*words, "train.train_iters=3"], run, resume_with_changes=True).step == 3
    assert not marker.exists()


def test_with_trust_the_same_file_is_executed(run, tmp_path):
    marker = tmp_path / "executed"
    into_the_index(run / LAST, Payload(marker))
    without_manifest(run / LAST)
    CliRunner().invoke(app, ["ckpt", "ls", str(run), "--trust", str(run)])
    assert marker.is_dir()


def test_a_received_configuration_does_not_trust_its_own_checkpoints(run, tmp_path):
    marker = tmp_path / "executed"
    into_an_object(run / LAST, Payload(marker))
    sealed_again(run / LAST)
    config = run / "run_config.yaml"
    config.write_text(config.read_text().replace("checkpoint:\n", "checkpoint:\n  trust: true\n", 1))
    words = [config, f"checkpoint.load={run}/checkpoints", "train.train_iters=7", "--out", tmp_path / "new"]
    answer = CliRunner().invoke(app, ["pretrain", *map(str, words)])
    assert (answer.exit_code, marker.exists()) == (2, False)
    assert "checkpoint.trust: True is not allowed in a file" in answer.output + answer.stderr


def test_a_configuration_in_a_run_folder_names_no_other_classes(run, tmp_path):
    path = run / LAST / "run_config.yaml"
    path.write_text(
        path.read_text().replace("model:\n", f"model:\n  _target_: os.mkdir\n  path: {tmp_path}/x\n", 1)
    )
    answer = CliRunner().invoke(app, ["sample", str(run), "--tokens", "1"])
    assert (answer.exit_code, (tmp_path / "x").exists()) == (1, False)
