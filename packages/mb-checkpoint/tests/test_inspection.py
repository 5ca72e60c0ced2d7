"""Inspection of checkpoints: listing, description, verification of every bit, comparison."""

from contextlib import suppress
from pathlib import Path

import complete_checkpoint
import pytest
import torch

from mb_checkpoint import (
    CheckpointNotFoundError,
    describe_checkpoint,
    diff_checkpoints,
    list_checkpoints,
    prune,
    select_checkpoint,
    verify_checkpoint,
)
from mb_checkpoint.errors import DamagedCheckpointError, IncompleteCheckpointError
from mb_checkpoint.inspect.inspection import StoredTensor, check_trackers
from mb_checkpoint.locks import writer_lock
from mb_checkpoint.save.commit import open_staging


def test_a_listing_reports_the_tracked_checkpoint_and_problems(tmp_path):
    for step in (10, 20, 30):
        complete_checkpoint.save(tmp_path, step)
    (tmp_path / "iter_0000020" / "metadata.json").unlink()
    found = [(each.step, each.tracked, each.problems) for each in list_checkpoints(tmp_path)]
    assert found == [(30, True, ()), (20, False, ("lacks metadata.json",)), (10, False, ())]
    assert list_checkpoints(tmp_path)[0].total_bytes > 1000


def test_temporary_ones_are_listed_verified_and_described_too(tmp_path):
    often = tmp_path / "non_persistent"
    paths = [complete_checkpoint.save(often, 4)]
    assert (describe_checkpoint(tmp_path).path, verify_checkpoint(tmp_path)) == (paths[0], {paths[0]: []})
    paths = [complete_checkpoint.save(tmp_path, 10), *paths]
    paths = [complete_checkpoint.save(often, 12), complete_checkpoint.save(tmp_path, 12), *paths]
    found = [(each.path, each.non_persistent, each.tracked) for each in list_checkpoints(tmp_path)]
    assert found == list(zip(paths, [True, False, False, True], [False, True, False, False], strict=True))
    assert [describe_checkpoint(tmp_path, step=step).path for step in (12, 10, 4)] == paths[1:]
    assert describe_checkpoint(tmp_path).path == paths[1]
    assert describe_checkpoint(paths[1], step=12).path == paths[1]
    with pytest.raises(
        CheckpointNotFoundError, match=r"is the checkpoint of step 12, not 10\. Leave the step out"
    ):
        describe_checkpoint(paths[1], step=10)
    assert set(verify_checkpoint(tmp_path)) == set(paths)


def test_a_description_has_counters_and_tensors(tmp_path):
    complete_checkpoint.save(tmp_path, 10)
    found = describe_checkpoint(tmp_path)
    assert (found.step, dict(found.train_state), found.manifest.step) == (10, {"step": 10}, 10)
    assert found.tensors == {"weight": StoredTensor(shape=(4,), dtype="float32")}


def damage(file, at=None):
    """Flip a bit of a file."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2 if at is None else at] ^= 64
    file.write_bytes(content)


def test_a_damaged_index_or_train_state_is_skipped_and_listed(tmp_path):
    for step in (10, 20, 30, 40):
        complete_checkpoint.save(tmp_path, step)
    damage(tmp_path / "iter_0000040" / ".metadata")
    damage(tmp_path / "iter_0000030" / "train_state.pt")
    (tmp_path / "iter_0000020" / "train_state.pt").unlink()
    found = describe_checkpoint(tmp_path)
    passed = {each.path.name: each.reason for each in found.skipped}
    assert (found.step, list(passed)) == (10, ["iter_0000040", "iter_0000030", "iter_0000020"])
    assert passed["iter_0000030"] == "train_state.pt differs from the manifest (checksum)"
    with pytest.raises(IncompleteCheckpointError, match=r"\.metadata differs from the manifest"):
        describe_checkpoint(tmp_path, step=40)
    between = diff_checkpoints(tmp_path, tmp_path / "iter_0000010")
    assert [path.name for path in between.paths] == ["iter_0000010"] * 2
    assert between.skipped == found.skipped


def test_a_changed_byte_anywhere_in_an_index_of_another_program_is_no_crash(tmp_path):
    index = complete_checkpoint.fill(tmp_path / "iter_0000010", 10) / ".metadata"
    content = index.read_bytes()
    for position in range(0, len(content), 23):
        index.write_bytes(content)
        damage(index, at=position)
        with suppress(IncompleteCheckpointError):
            describe_checkpoint(index.parent)


def test_an_unreadable_tensor_is_one_error_that_names_it(tmp_path):
    one, other = complete_checkpoint.save(tmp_path, 10), complete_checkpoint.save(tmp_path, 20)
    (data,) = one.glob("*.distcp")
    data.write_bytes(bytes(data.stat().st_size))
    with pytest.raises(DamagedCheckpointError, match="iter_0000010: weight cannot be read"):
        diff_checkpoints(one, other, values=True)


def test_a_configuration_that_is_no_text_is_compared_all_the_same(tmp_path):
    one, other = complete_checkpoint.fill(tmp_path / "a", 10), complete_checkpoint.fill(tmp_path / "b", 10)
    (one / "run_config.yaml").write_bytes(b"a: 1\nb: \xff\n")
    (other / "run_config.yaml").write_bytes(b"a: 1\n")
    assert diff_checkpoints(one, other).config == ("- b: \N{REPLACEMENT CHARACTER}",)


def test_random_states_and_other_objects_are_compared_with_the_values(tmp_path):
    weight = torch.zeros(4)
    folders = [
        complete_checkpoint.save(tmp_path / name, 10, tensors={"weight": weight, "rng": rng, **more})
        for name, rng, more in (("a", [1], {}), ("b", [2], {}), ("c", [1], {"more": "x"}))
    ]
    one, other, third = folders
    assert dict(diff_checkpoints(one, other, values=True).objects) == {"rng": "stored bytes differ"}
    assert dict(diff_checkpoints(one, third, values=True).objects) == {"more": "absent in old"}
    assert not diff_checkpoints(one, other)


def test_trackers_that_are_damaged_or_name_what_is_gone_are_found(tmp_path):
    for step in (10, 20):
        complete_checkpoint.save(tmp_path, step)
    assert check_trackers(tmp_path) == []
    state, text = tmp_path / "latest_train_state.pt", tmp_path / "latest_checkpointed_iteration.txt"
    state.write_bytes(b"")
    text.write_text("30")
    assert verify_checkpoint(tmp_path)[text] == ["names step 30, whose folder is not there"]
    assert verify_checkpoint(tmp_path)[state][0].startswith("is damaged: ")
    text.write_bytes(bytes(range(128, 140)))
    assert "neither a step nor 'release'" in verify_checkpoint(tmp_path)[text][0]
    text.write_text("release")
    assert verify_checkpoint(tmp_path)[text] == ["names release, whose folder is not there"]
    state.write_bytes((tmp_path / "iter_0000010" / "train_state.pt").read_bytes())
    text.write_text("10")
    assert [(each.text, each.damaged) for each in check_trackers(tmp_path)] == [
        ("names step 10, and 20 is there too", False)
    ] * 2
    assert not any(verify_checkpoint(tmp_path).values())
    (tmp_path / "release").mkdir()
    text.write_text("release")
    assert len(check_trackers(tmp_path)) == 1


def test_one_unreadable_folder_does_not_hide_the_others(tmp_path, monkeypatch):
    for step in (10, 20):
        complete_checkpoint.save(tmp_path, step)
    monkeypatch.chdir(tmp_path)
    bad = Path("iter_0000010")
    with complete_checkpoint.unreadable(bad):
        listed = [(each.step, each.problems) for each in list_checkpoints(Path())]
        verified = verify_checkpoint(Path())
        not_removed = prune(Path(), keep=1).not_removed
    problem = "the folder cannot be read (Permission denied)"
    assert listed == [(20, ()), (10, (problem,))]
    assert verified == {Path("iter_0000020"): [], bad: [problem]}
    assert [path for path, _ in not_removed] == [bad]


def test_what_a_killed_save_left_is_listed_and_pruned_unless_a_process_saves_there(tmp_path):
    complete_checkpoint.save(tmp_path, 10)
    left = complete_checkpoint.fill(open_staging(tmp_path, 20), 20)
    first, _ = list_checkpoints(tmp_path)
    assert (first.path, first.step, first.unfinished, first.total_bytes > 1000) == (left, 20, True, True)
    assert prune(tmp_path, keep=1).removed == ()
    with writer_lock(tmp_path, run="here"):
        assert prune(tmp_path, keep=1, unfinished=True).not_removed == ((left, "a process saves there"),)
    assert prune(tmp_path, keep=1, unfinished=True, dry_run=True).removed == (left,)
    assert left.is_dir()
    assert prune(tmp_path, keep=1, unfinished=True).removed == (left,)
    assert not left.exists()


def test_a_foreign_folder_is_not_an_unfinished_save(tmp_path):
    complete_checkpoint.save(tmp_path, 10)
    foreign = tmp_path / ".saving_iter_x"
    foreign.mkdir()
    assert [each.step for each in list_checkpoints(tmp_path)] == [10]
    assert (prune(tmp_path, keep=1, unfinished=True).removed, foreign.is_dir()) == ((), True)


def test_nothing_to_describe_or_verify_is_an_error(tmp_path):
    with pytest.raises(CheckpointNotFoundError, match=r"no checkpoint\. Name a run"):
        describe_checkpoint(tmp_path)
    with pytest.raises(CheckpointNotFoundError, match=r"no checkpoint\. Name a run"):
        verify_checkpoint(tmp_path)


def test_a_flipped_bit_in_any_file_is_found_by_verify(tmp_path):
    folder = complete_checkpoint.save(tmp_path, 10)
    assert verify_checkpoint(tmp_path) == {folder: []}
    for path in sorted(folder.iterdir()):
        content = path.read_bytes()
        for position in {0, len(content) // 2, len(content) - 1}:
            changed = bytearray(content)
            changed[position] ^= 4
            path.write_bytes(changed)
            (problems,) = verify_checkpoint(folder).values()
            assert problems, f"{path.name} byte {position}"
            assert path.name in problems[0]
        path.write_bytes(content)
    assert verify_checkpoint(tmp_path) == {folder: []}


def test_a_checkpoint_of_another_program_is_reported_as_not_verifiable(tmp_path):
    folder = complete_checkpoint.fill(tmp_path / "iter_0000010", 10)
    assert verify_checkpoint(tmp_path) == {folder: ["has no manifest.json: contents cannot be verified"]}


def test_a_flipped_bit_in_a_tracker_changes_nothing(tmp_path):
    for step in (10, 20):
        complete_checkpoint.save(tmp_path, step)
    for name in ("latest_train_state.pt", "latest_checkpointed_iteration.txt"):
        content = (tmp_path / name).read_bytes()
        for position in range(0, len(content) * 8, 1 if len(content) < 10 else 499):
            changed = bytearray(content)
            changed[position // 8] ^= 1 << position % 8
            (tmp_path / name).write_bytes(changed)
            assert select_checkpoint(tmp_path).step == 20
        (tmp_path / name).write_bytes(content)


def test_two_equal_checkpoints_do_not_differ(tmp_path):
    one, other = complete_checkpoint.save(tmp_path / "a", 10), complete_checkpoint.save(tmp_path / "b", 10)
    assert not diff_checkpoints(one, other, values=True)


def test_nan_equals_nan(tmp_path):
    nan = float("nan")
    first, second, third = (
        complete_checkpoint.save(tmp_path / name, 10, tensors={"weight": torch.tensor(values)})
        for name, values in (("a", [nan, 1.0]), ("b", [nan, 1.0]), ("c", [nan, 3.0]))
    )
    assert not diff_checkpoints(first, second, values=True)
    assert diff_checkpoints(first, third, values=True).values == {"weight": 2.0}


def test_a_difference_names_counters_values_and_lines(tmp_path):
    one, other = complete_checkpoint.save(tmp_path, 10), complete_checkpoint.save(tmp_path, 20)
    (one / "run_config.yaml").write_text("a: 1\nb: 2\n")
    (other / "run_config.yaml").write_text("a: 1\nb: 3\n")
    found = diff_checkpoints(one, other, values=True)
    assert (found.train_state, found.values, found.config) == (
        {"step": (10, 20)},
        {"weight": 10.0},
        ("- b: 2", "+ b: 3"),
    )


def test_a_tensor_of_another_shape_is_named(tmp_path):
    one = complete_checkpoint.save(tmp_path / "a", 10)
    other = complete_checkpoint.save(
        tmp_path / "b", 10, tensors={"weight": torch.zeros(5), "bias": torch.zeros(2)}
    )
    assert diff_checkpoints(one, other).tensors == {
        "bias": ("absent", "float32 [2]"),
        "weight": ("float32 [4]", "float32 [5]"),
    }


def test_a_damaged_checkpoint_is_not_described(tmp_path):
    folder = complete_checkpoint.save(tmp_path, 10)
    (folder / "train_state.pt").unlink()
    with pytest.raises(IncompleteCheckpointError, match=r"lacks train_state\.pt"):
        describe_checkpoint(folder)
