"""Megatron-Bridge's functions on the files of checkpoints; the names of files are those of its documentation."""

import pytest

from mb_checkpoint import bridge_api
from mb_checkpoint.errors import CheckpointReadError


def test_names_of_files_are_megatron_bridges(tmp_path):
    root = str(tmp_path)
    assert bridge_api.get_checkpoint_name(root, 100) == f"{root}/iter_0000100"
    assert bridge_api.get_checkpoint_name(root, 0, release=True) == f"{root}/release"
    assert bridge_api.get_checkpoint_train_state_filename(root) == f"{root}/train_state.pt"
    latest = bridge_api.get_checkpoint_train_state_filename(root, prefix=bridge_api.TRACKER_PREFIX)
    assert latest == f"{root}/latest_train_state.pt"
    assert bridge_api.get_checkpoint_run_config_filename(root) == f"{root}/run_config.yaml"
    assert bridge_api.get_checkpoint_tracker_filename(root) == f"{root}/latest_checkpointed_iteration.txt"


@pytest.mark.parametrize("mark", ["run_config.yaml", "train_state.pt", "metadata.json", ".metadata"])
def test_a_folder_with_a_file_of_a_checkpoint_is_one(tmp_path, mark):
    assert not bridge_api.is_checkpoint_iteration_directory(str(tmp_path))
    assert not bridge_api.checkpoint_exists(str(tmp_path))
    (tmp_path / mark).touch()
    assert bridge_api.is_checkpoint_iteration_directory(str(tmp_path))
    assert bridge_api.checkpoint_exists(str(tmp_path))


@pytest.mark.parametrize("tracker", ["latest_train_state.pt", "latest_checkpointed_iteration.txt"])
def test_a_folder_with_a_tracker_has_checkpoints(tmp_path, tracker):
    (tmp_path / tracker).touch()
    assert bridge_api.checkpoint_exists(str(tmp_path))


def test_without_a_path_there_is_none(tmp_path):
    assert not bridge_api.checkpoint_exists(None)
    assert not bridge_api.is_checkpoint_iteration_directory(None)
    assert not bridge_api.is_hf_checkpoint_dir(None)
    assert not bridge_api.is_hf_checkpoint_dir(str(tmp_path))
    (tmp_path / "config.json").touch()
    (tmp_path / "model-00001-of-00002.safetensors").touch()
    assert bridge_api.is_hf_checkpoint_dir(str(tmp_path))


def test_a_step_is_found_if_megatron_core_wrote_it(tmp_path):
    folder = tmp_path / "iter_0000005"
    folder.mkdir()
    assert bridge_api.find_checkpoint_rank_0(str(tmp_path), 5) is None
    (folder / "metadata.json").touch()
    assert bridge_api.find_checkpoint_rank_0(str(tmp_path), 5) == str(folder)


@pytest.mark.parametrize(("text", "found"), [("12\n", (12, False)), ("release", (0, True))])
def test_a_tracker_holds_a_step_or_names_weights(tmp_path, text, found):
    tracker = tmp_path / "latest_checkpointed_iteration.txt"
    tracker.write_text(text)
    assert bridge_api.read_metadata(str(tracker)) == found


@pytest.mark.parametrize("text", [None, "0", "soon", "-3"])
def test_a_tracker_without_a_step_is_an_error(tmp_path, text):
    tracker = tmp_path / "latest_checkpointed_iteration.txt"
    if text is not None:
        tracker.write_text(text)
    with pytest.raises(CheckpointReadError, match=r"iteration.txt: could not be read"):
        bridge_api.read_metadata(str(tracker))
