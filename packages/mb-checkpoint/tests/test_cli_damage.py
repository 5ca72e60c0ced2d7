"""Program `mb-checkpoint` on damaged checkpoints: messages, kept checkpoints and exit codes."""

import json

import complete_checkpoint
import pytest

pytest.importorskip("rich", reason="needs mb-checkpoint[cli]")
pytest.importorskip("typer", reason="needs mb-checkpoint[cli]")

import warnings

import torch
import torch.distributed.checkpoint as dcp
from typer.testing import CliRunner

from mb_checkpoint.cli.app import app
from mb_checkpoint.formats.manifest import Manifest
from mb_checkpoint.save.commit import commit, fsync_and_write_manifest, open_staging
from mb_checkpoint.state.train_state import encode_train_state


@pytest.fixture
def root(tmp_path):
    """Return a folder with checkpoints of three steps."""
    for step in (10, 20, 30):
        staging = fill(open_staging(tmp_path, step), step)
        fsync_and_write_manifest(staging, Manifest(step=step, files=()))
        commit(tmp_path, step, staging)
    return tmp_path


def fill(folder, step):
    """Write a checkpoint without its manifest."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save({"weight": torch.full((4,), float(step))}, checkpoint_id=folder, no_dist=True)
    (folder / "train_state.pt").write_bytes(encode_train_state({"step": step}))
    return folder


def mb_checkpoint(*arguments):
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return done.exit_code, done.stdout.splitlines()


def names(root):
    return sorted(path.name for path in root.glob("*iter_*"))


def test_prune_keeps_the_requested_number_of_intact_checkpoints(root):
    complete_checkpoint.flip_bit(root / "iter_0000030")
    code, lines = mb_checkpoint("prune", root, "--keep", 1)
    assert (code, names(root)) == (0, ["iter_0000020", "iter_0000030"])
    assert [line.rpartition("/")[2] for line in lines] == [
        "iter_0000010",
        "iter_0000030: __0_0.distcp differs from the manifest (checksum)",
    ]
    complete_checkpoint.flip_bit(root / "iter_0000020")
    assert (mb_checkpoint("prune", root, "--keep", 1), names(root)) == (
        (1, []),
        ["iter_0000020", "iter_0000030"],
    )


def test_a_killed_save_is_listed_with_its_size_and_pruned(root):
    left = fill(open_staging(root, 40), 40)
    first = mb_checkpoint("ls", root)[1][0].split(maxsplit=3)
    assert (first[0], first[3].split()[0]) == ("40", left.name)
    assert mb_checkpoint("prune", root, "--keep", 3) == (0, [f"deleted {left}"])
    assert names(root) == ["iter_0000010", "iter_0000020", "iter_0000030"]


def test_a_lost_manifest_is_distinguished_from_a_checkpoint_of_another_program(root):
    (root / "iter_0000030" / "manifest.json").unlink()
    fill(root / "iter_0000005", 5)
    lines = mb_checkpoint("ls", root)[1]
    assert "lacks manifest.json, with which it was committed" in lines[0]
    assert "complete, no manifest: contents cannot be verified" in lines[3]


def test_show_and_diff_name_skipped_and_selected_checkpoints(root):
    (root / "iter_0000030" / ".metadata").write_bytes(b"")
    skipped = f"skipped {root}/iter_0000030: .metadata has 0 of "
    shown, compared = mb_checkpoint("show", root)[1], mb_checkpoint("diff", root, root / "iter_0000010")[1]
    assert [shown[0][: len(skipped)], compared[0][: len(skipped)]] == [skipped] * 2
    assert shown[1].startswith(f"{root}/iter_0000020: step 20")
    assert compared[1:3] == [f"old: {root}/iter_0000020", f"new: {root}/iter_0000010"]
    found = CliRunner().invoke(app, ["show", str(root), "--json"]).stdout
    assert json.loads(found)["skipped"][0]["path"] == f"{root}/iter_0000030"


@pytest.mark.parametrize(
    ("content", "note", "code"),
    [
        (b"", "is damaged: holds ''", 1),
        (b"40", "names step 40, whose folder is not there", 1),
        (b"20", "names step 20, and 30 is there too", 0),
    ],
)
def test_a_tracker_that_leads_nowhere_is_damage(root, content, note, code):
    tracker = root / "latest_checkpointed_iteration.txt"
    tracker.write_bytes(content)
    listed, lines = mb_checkpoint("ls", root)
    assert (listed, any(line.startswith(f"{tracker.name} {note}") for line in lines)) == (code, True)
    found, lines = mb_checkpoint("verify", root)
    assert (found, any(line.startswith(f"{tracker}: {note}") for line in lines)) == (code, True)


def test_a_damaged_manifest_is_described_without_its_path(root):
    (root / "iter_0000030" / "manifest.json").write_bytes(b"{}")
    reason = "manifest.json is not a manifest (KeyError: 'manifest_sha256')"
    code, lines = mb_checkpoint("ls", root)
    assert (code, lines[0].partition("iter_0000030  ")[2]) == (1, reason)
    assert mb_checkpoint("show", root)[1][0] == f"skipped {root}/iter_0000030: {reason}"


def test_a_damaged_state_tracker_is_described_in_one_line(root):
    tracker = root / "latest_train_state.pt"
    tracker.write_bytes(b"xx")
    code, lines = mb_checkpoint("ls", root)
    note = f"{tracker.name} is damaged: cannot be read as a train state (UnpicklingError)"
    assert (code, lines[3:]) == (1, [note])


def test_show_of_damaged_checkpoints_is_damage(root):
    for step in (10, 20, 30):
        (root / f"iter_{step:07d}" / ".metadata").unlink()
    done = CliRunner().invoke(app, ["show", str(root)])
    reasons = "; ".join(f"iter_{step:07d}: lacks .metadata" for step in (30, 20, 10))
    advice = "Restore their files from a copy, or name another folder."
    assert (done.exit_code, done.stderr) == (
        1,
        f"error: {root}: no complete checkpoint ({reasons}). {advice}\n",
    )
    assert mb_checkpoint("ls", root)[0] == 1
