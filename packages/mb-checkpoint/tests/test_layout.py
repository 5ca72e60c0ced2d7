"""Names on disk, and the files that make a folder a checkpoint."""

from pathlib import Path

import pytest

from mb_checkpoint.formats import layout


@pytest.mark.parametrize(
    ("step", "name"), [(0, "iter_0000000"), (100, "iter_0000100"), (12_345_678, "iter_12345678")]
)
def test_a_step_and_its_folder_name_each_other(step, name):
    assert layout.iteration_directory(Path("run"), step) == Path("run") / name
    assert layout.step_of(Path("run") / name) == step


@pytest.mark.parametrize("name", ["release", "iter_12", "iter_0000001.tmp", ".saving_iter_0000001"])
def test_other_names_are_no_steps(name):
    assert layout.step_of(Path(name)) is None


@pytest.mark.parametrize("mark", ["run_config.yaml", "train_state.pt", "metadata.json", ".metadata"])
def test_one_mark_makes_a_folder_a_checkpoint(tmp_path, mark):
    assert not layout.is_iteration_directory(tmp_path)
    (tmp_path / mark).touch()
    assert layout.is_iteration_directory(tmp_path)
    assert layout.has_checkpoint(tmp_path)


@pytest.mark.parametrize("sibling", ["iter_0000010/x", "latest_checkpointed_iteration.txt"])
def test_a_config_next_to_checkpoints_belongs_to_their_run(tmp_path, sibling):
    (tmp_path / "run_config.yaml").touch()
    (tmp_path / sibling).parent.mkdir(exist_ok=True)
    (tmp_path / sibling).touch()
    assert not layout.is_iteration_directory(tmp_path)
    assert layout.has_checkpoint(tmp_path) == (not sibling.startswith("iter"))
    assert layout.why_not_a_checkpoint(tmp_path) is None


@pytest.mark.parametrize("tracker", ["latest_train_state.pt", "latest_checkpointed_iteration.txt"])
def test_a_tracker_implies_a_checkpoint(tmp_path, tracker):
    assert not layout.has_checkpoint(tmp_path)
    (tmp_path / tracker).touch()
    assert layout.has_checkpoint(tmp_path)


def test_steps_come_newest_first_and_hidden_names_count_only_alone(tmp_path):
    for name in ("iter_0000002", "iter_0000010", ".replaced_iter_0000010", ".replaced_iter_0000005", "wandb"):
        (tmp_path / name).mkdir()
    assert layout.steps_in(tmp_path) == {
        10: tmp_path / "iter_0000010",
        5: tmp_path / ".replaced_iter_0000005",
        2: tmp_path / "iter_0000002",
    }
    assert layout.steps_in(tmp_path / "missing") == {}


@pytest.mark.parametrize(
    "inside",
    ["metadata.json", "latest_checkpointed_iteration.txt", "iter_0000010/x", "non_persistent/iter_0000010/x"],
)
def test_a_folder_has_a_checkpoint_where_a_load_would_look_for_one(tmp_path, inside):
    assert layout.why_not_a_checkpoint(tmp_path / "missing") == "has no checkpoint"
    (tmp_path / "progress.txt").touch()
    assert layout.why_not_a_checkpoint(tmp_path) == "has no checkpoint"
    (tmp_path / inside).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / inside).touch()
    assert layout.why_not_a_checkpoint(tmp_path) is None


def test_a_folder_that_cannot_be_read_is_a_reason(tmp_path):
    class Unreadable(type(tmp_path)):
        def iterdir(self):
            raise PermissionError(13, "Permission denied", str(self))

    assert layout.why_not_a_checkpoint(Unreadable(tmp_path)) == (
        "cannot be read (PermissionError: Permission denied)"
    )


@pytest.mark.parametrize(
    ("files", "inside"),
    [
        (["checkpoints/x", "run_config.yaml"], True),
        (["events.jsonl", "run_config.yaml"], True),
        (["events.jsonl", "run_config.yaml", "iter_0000001/x"], False),
        (["iter_0000001/x"], False),
        (["run_config.yaml", ".metadata"], False),
    ],
)
def test_the_checkpoints_of_a_run_are_inside(tmp_path, files, inside):
    for file in files:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
    assert layout.checkpoints_in(tmp_path) == (tmp_path / "checkpoints" if inside else tmp_path)


def test_a_folder_that_cannot_be_reached_is_returned_unchanged(tmp_path):
    unreachable = tmp_path / ("x" * 300)
    assert layout.checkpoints_in(unreachable) == unreachable
