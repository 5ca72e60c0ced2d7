"""Status of a run before it starts, by the names of folders."""

from pathlib import Path

import pytest

from mb_checkpoint import CheckpointConfig, resume_status
from mb_checkpoint.load.run_status import complete_message


def status(section, *, train_iters=20, **options):
    """Return state and step."""
    found = resume_status(section, train_iters=train_iters, **options)
    return found.state, found.step


@pytest.mark.parametrize(
    ("section", "found", "expected"),
    [
        ({}, "run/iter_0000012", ("resumable", 12)),
        ({}, "run/iter_0000020", ("complete", 20)),
        ({}, "run/non_persistent/iter_0000012", ("resumable", 12)),
        ({}, "run/non_persistent/iter_0000020", ("resumable", 20)),  # its last step is still to be saved
        (
            {"non_persistent_ckpt_type": "global", "non_persistent_global_ckpt_dir": "often"},
            "often/iter_0000012",
            ("resumable", 12),
        ),
        ({"finetune": True}, "run/iter_0000012", ("fresh", None)),
        ({}, "run/.saving_iter_0000012.x", ("fresh", None)),
        ({"load": "base"}, "base/iter_0000012", ("resumable", 12)),
        ({"load": None}, "other/iter_0000012", ("fresh", None)),
    ],
)
def test_a_run_resumes_from_every_kind_of_checkpoint(tmp_path, monkeypatch, section, found, expected):
    monkeypatch.chdir(tmp_path)
    Path(found).mkdir(parents=True)
    checkpoint = CheckpointConfig(**{"save": "run", "load": "run"} | section)
    assert status(checkpoint) == expected
    assert resume_status(checkpoint, train_iters=20).resumes == (expected[0] != "fresh")


def test_the_step_is_the_newest_folder_or_the_configured_one_whatever_the_tracker_holds(tmp_path):
    load = CheckpointConfig(load=str(tmp_path))
    assert status(load) == ("fresh", None)
    (tmp_path / "latest_checkpointed_iteration.txt").write_bytes(b"92\xff")
    assert status(load) == ("resumable", None)
    for name in ("iter_0000003", "non_persistent/iter_0000012"):
        (tmp_path / name).mkdir(parents=True)
    assert status(load) == ("resumable", 12)
    named = CheckpointConfig(load=str(tmp_path), ckpt_step=3)
    assert status(named) == ("resumable", 3)
    assert resume_status(named, train_iters=20).start_fields == {"ckpt_step": 3, "load": str(tmp_path)}
    assert status(CheckpointConfig(load=str(tmp_path), finetune=True)) == ("fresh", None)
    (tmp_path / "iter_0000003" / ".metadata").touch()
    assert status(CheckpointConfig(load=str(tmp_path / "iter_0000003"))) == ("resumable", 3)
    assert status(CheckpointConfig()) == ("fresh", None)


def test_a_folder_that_cannot_be_read_has_no_step(tmp_path):
    # the load reports the reason
    assert status(CheckpointConfig(load=str(tmp_path / ("x" * 300)))) == ("fresh", None)


def test_a_run_resumes_from_checkpoints_that_only_this_node_has(tmp_path):
    local = CheckpointConfig(non_persistent_ckpt_type="local", non_persistent_local_ckpt_dir=str(tmp_path))
    assert status(local) == ("fresh", None)
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "iter_0000012_0_local.pt").touch()
    assert status(local) == ("resumable", None)
    assert status(CheckpointConfig(non_persistent_local_ckpt_dir=str(tmp_path))) == ("fresh", None)


def test_a_start_from_the_beginning_in_a_folder_with_checkpoints_is_rejected(tmp_path):
    (tmp_path / "iter_0000012").mkdir()
    found = resume_status(CheckpointConfig(save=str(tmp_path), load=None), train_iters=20)
    assert (found.state, found.resumes) == ("rejected", False)
    assert found.reason.startswith(
        f"checkpoint.load: is null, so the run would start from the beginning, and {tmp_path}"
    )
    assert status(CheckpointConfig(load=None)) == ("fresh", None)


def test_an_evaluation_of_random_weights_is_rejected(tmp_path):
    for section, problem in (
        (CheckpointConfig(), "checkpoint.load is null"),
        (CheckpointConfig(load=str(tmp_path)), f"{tmp_path} has no checkpoint"),
    ):
        found = resume_status(section, train_iters=20, evaluate_only=True)
        assert (found.state, problem in found.reason) == ("rejected", True)


@pytest.mark.parametrize(
    "section",
    [
        {"pretrained_checkpoint": "base"},
        {"custom_manager_class": "mine.Manager"},
        {"non_persistent_global_ckpt_dir": "often"},
        {"non_persistent_ckpt_type": "local"},
    ],
)
def test_an_evaluation_may_have_weights_that_are_not_searched(section):
    assert status(CheckpointConfig(**section), evaluate_only=True) == ("fresh", None)


def test_an_evaluation_is_never_complete(tmp_path):
    (tmp_path / "iter_0000020").mkdir()
    section = CheckpointConfig(load=str(tmp_path), save=str(tmp_path))
    assert status(section) == ("complete", 20)
    assert status(section, evaluate_only=True) == ("resumable", 20)


def test_a_complete_run_has_advice_on_training_longer(tmp_path):
    section, last = CheckpointConfig(save=str(tmp_path / "run")), tmp_path / "run" / "iter_0000006"
    message, advice = complete_message(section, last, run=tmp_path, train_iters=6)
    assert message == f"{tmp_path}: the run is complete (6 steps); nothing to do."
    assert "--resume-with-changes" in advice


def test_a_complete_run_of_another_folder_leaves_the_new_one_empty(tmp_path):
    section, last = CheckpointConfig(save=str(tmp_path / "new")), tmp_path / "run" / "iter_0000006"
    message, advice = complete_message(section, last, run=tmp_path / "new", train_iters=6)
    assert message.endswith(f"nothing to do, and {tmp_path / 'new'} stays empty.")
    assert "--resume-with-changes" not in advice
