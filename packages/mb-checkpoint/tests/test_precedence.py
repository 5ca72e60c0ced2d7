"""Precedence of the sources, by the fields of the section: nothing is loaded, and Megatron is not needed."""

import complete_checkpoint
import pytest

from mb_checkpoint import CheckpointConfig, CheckpointNotFoundError
from mb_checkpoint.errors import IncompleteCheckpointError
from mb_checkpoint.load.sources import find_checkpoint, resumes_by_tracker

NON_PERSISTENT = {"non_persistent_ckpt_type": "global"}


@pytest.fixture
def places(tmp_path):
    """Run with steps 10 and 20 and a non-persistent 30, another run's non-persistent 40, and weights of step 5."""
    run, other, base = tmp_path / "run", tmp_path / "other", tmp_path / "base"
    for root, steps in {
        run: (10, 20),
        run / "non_persistent": (30,),
        other / "non_persistent": (40,),
        base: (5,),
    }.items():
        for step in steps:
            complete_checkpoint.save(root, step)
    return {"run": str(run), "other": str(other), "base": str(base), "empty": str(tmp_path / "empty")}


def found(places, **section):
    source, chosen = find_checkpoint(CheckpointConfig(**{
        name: places.get(value, value) if isinstance(value, str) else value for name, value in section.items()
    }))  # fmt: skip
    return source, None if chosen is None else chosen.step


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ({}, ("nothing", None)),
        ({"load": "empty", "save": "empty"}, ("nothing", None)),
        ({"pretrained_checkpoint": "base"}, ("weights", 5)),
        ({"load": "empty", "save": "empty", "pretrained_checkpoint": "base"}, ("weights", 5)),
        ({"load": "run", "pretrained_checkpoint": "base"}, ("resumed", 30)),
        ({"load": "run", "ckpt_step": 10, "pretrained_checkpoint": "base"}, ("resumed", 10)),
        ({"load": "run", "finetune": True}, ("weights", 30)),
        ({"load": "empty", "save": "run"}, ("resumed", 30)),
        ({"load": "run", "save": "other"}, ("resumed", 40)),
        ({"load": "run", "non_persistent_global_ckpt_dir": "base"}, ("resumed", 20)),
        ({"load": "run", "non_persistent_global_ckpt_dir": "empty"}, ("resumed", 20)),
    ],
    ids=lambda value: " ".join(f"{name}={each}" for name, each in value.items()) if isinstance(value, dict) else "",
)  # fmt: skip
def test_precedence(places, section, expected):
    assert found(places, **section) == expected


def test_one_checkpoint_s_own_folder_leaves_no_choice(places):
    section = {"load": f"{places['run']}/iter_0000010", "save": places["run"], **NON_PERSISTENT}
    assert found(places, **section) == ("resumed", 10)
    assert not resumes_by_tracker(CheckpointConfig(**section))


def test_a_released_checkpoint_gives_weights_and_is_no_run_to_resume(tmp_path):
    (complete_checkpoint.fill(tmp_path / "release", 0) / "train_state.pt").unlink()
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("release")
    source, chosen = find_checkpoint(CheckpointConfig(load=str(tmp_path)))
    assert (source, chosen.path.name) == ("weights", "release")


def damage(root):
    for path in root.glob("iter_*/.metadata"):
        path.unlink()


def test_an_intact_non_persistent_checkpoint_replaces_damaged_ones_and_they_are_listed(places, tmp_path):
    damage(tmp_path / "run")
    source, chosen = find_checkpoint(CheckpointConfig(load=places["run"]))
    assert (source, chosen.step) == ("resumed", 30)
    assert "no complete checkpoint (iter_0000020: lacks .metadata" in chosen.skipped[-1].reason


def test_with_all_damaged_the_error_names_the_persistent_ones(places, tmp_path):
    damage(tmp_path / "run")
    damage(tmp_path / "run" / "non_persistent")
    with pytest.raises(CheckpointNotFoundError, match=r"run: no complete checkpoint \(iter_0000020: lacks"):
        found(places, load="run", pretrained_checkpoint="base")


@pytest.mark.parametrize(
    ("section", "error", "message"),
    [
        (
            {"load": "empty", "save": "empty", "exit_on_missing_checkpoint": True},
            CheckpointNotFoundError,
            "forbids",
        ),
        ({"load": "empty", "save": "new"}, CheckpointNotFoundError, "no such folder: .*empty; the nearest"),
        ({"pretrained_checkpoint": "empty"}, CheckpointNotFoundError, "no such folder: .*empty; the nearest"),
        ({"load": "run", "ckpt_step": 30}, CheckpointNotFoundError, "steps there: 20, 10"),
    ],
)
def test_a_requested_checkpoint_that_is_missing_is_an_error(places, section, error, message):
    with pytest.raises(error, match=message):
        found(places, **section)


def test_initial_weights_that_are_named_by_their_folder_must_be_complete(places):
    damage(tmp := complete_checkpoint.Path(places["base"]))
    with pytest.raises(IncompleteCheckpointError, match=r"lacks \.metadata"):
        found(places, pretrained_checkpoint=str(tmp / "iter_0000005"))


def test_a_checkpoint_that_the_caller_found_damaged_is_skipped(places, tmp_path):
    bad = {tmp_path / "run" / "non_persistent" / "iter_0000030": "differs from the manifest"}
    source, chosen = find_checkpoint(CheckpointConfig(load=places["run"]), bad)
    assert (source, chosen.step) == ("resumed", 20)
