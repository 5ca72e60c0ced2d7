"""Checkpoints looked at from outside: listed, described, verified bit by bit, compared."""

import pytest
import torch
import whole

from mb_checkpoint import (
    CheckpointNotFoundError,
    IncompleteCheckpointError,
    StoredTensor,
    describe_checkpoint,
    diff_checkpoints,
    list_checkpoints,
    select_checkpoint,
    verify_checkpoint,
)


def test_a_listing_says_which_one_is_next_and_what_is_wrong(tmp_path):
    for step in (10, 20, 30):
        whole.save(tmp_path, step)
    (tmp_path / "iter_0000020" / "metadata.json").unlink()
    found = [(each.step, each.tracked, each.problems) for each in list_checkpoints(tmp_path)]
    assert found == [(30, True, ()), (20, False, ("lacks metadata.json",)), (10, False, ())]
    assert list_checkpoints(tmp_path)[0].total_bytes > 1000


def test_temporary_ones_are_listed_verified_and_described_too(tmp_path):
    often = tmp_path / "non_persistent"
    paths = [whole.save(often, 4)]
    assert (describe_checkpoint(tmp_path).path, verify_checkpoint(tmp_path)) == (paths[0], {paths[0]: []})
    paths = [whole.save(tmp_path, 10), *paths]
    paths = [whole.save(often, 12), whole.save(tmp_path, 12), *paths]
    found = [(each.path, each.temporary, each.tracked) for each in list_checkpoints(tmp_path)]
    assert found == list(zip(paths, [True, False, False, True], [False, True, False, False], strict=True))
    assert [describe_checkpoint(tmp_path, step=step).path for step in (12, 10, 4)] == paths[1:]
    assert describe_checkpoint(tmp_path).path == paths[1]
    assert set(verify_checkpoint(tmp_path)) == set(paths)


def test_a_description_has_counters_and_tensors(tmp_path):
    whole.save(tmp_path, 10)
    found = describe_checkpoint(tmp_path)
    assert (found.step, dict(found.train_state), found.manifest.step) == (10, {"step": 10}, 10)
    assert found.tensors == {"weight": StoredTensor(shape=(4,), dtype="float32")}


def test_nothing_to_describe_or_verify_is_an_error(tmp_path):
    with pytest.raises(CheckpointNotFoundError, match="no checkpoint there"):
        describe_checkpoint(tmp_path)
    with pytest.raises(CheckpointNotFoundError, match="no checkpoint there"):
        verify_checkpoint(tmp_path)


def test_a_flipped_bit_in_any_file_is_found_by_verify(tmp_path):
    folder = whole.save(tmp_path, 10)
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


def test_a_checkpoint_of_another_program_cannot_be_verified_and_that_is_said(tmp_path):
    folder = whole.fill(tmp_path / "iter_0000010", 10)
    assert verify_checkpoint(tmp_path) == {folder: ["has no manifest.json: contents cannot be verified"]}


def test_a_flipped_bit_in_a_tracker_changes_nothing(tmp_path):
    for step in (10, 20):
        whole.save(tmp_path, step)
    for name in ("latest_train_state.pt", "latest_checkpointed_iteration.txt"):
        content = (tmp_path / name).read_bytes()
        for position in range(0, len(content) * 8, 1 if len(content) < 10 else 499):
            changed = bytearray(content)
            changed[position // 8] ^= 1 << position % 8
            (tmp_path / name).write_bytes(changed)
            assert select_checkpoint(tmp_path).step == 20
        (tmp_path / name).write_bytes(content)


def test_two_equal_checkpoints_do_not_differ(tmp_path):
    one, other = whole.save(tmp_path / "a", 10), whole.save(tmp_path / "b", 10)
    assert not diff_checkpoints(one, other, values=True)


def test_a_difference_names_counters_values_and_lines(tmp_path):
    one, other = whole.save(tmp_path, 10), whole.save(tmp_path, 20)
    (one / "run_config.yaml").write_text("a: 1\nb: 2\n")
    (other / "run_config.yaml").write_text("a: 1\nb: 3\n")
    found = diff_checkpoints(one, other, values=True)
    assert (found.train_state, found.values, found.config) == (
        {"step": (10, 20)},
        {"weight": 10.0},
        ("- b: 2", "+ b: 3"),
    )


def test_a_tensor_of_another_shape_is_named(tmp_path):
    one = whole.save(tmp_path / "a", 10)
    other = whole.save(tmp_path / "b", 10, tensors={"weight": torch.zeros(5), "bias": torch.zeros(2)})
    assert diff_checkpoints(one, other).tensors == {
        "bias": ("absent", "float32 [2]"),
        "weight": ("float32 [4]", "float32 [5]"),
    }


def test_a_damaged_checkpoint_is_not_described(tmp_path):
    folder = whole.save(tmp_path, 10)
    (folder / "train_state.pt").unlink()
    with pytest.raises(IncompleteCheckpointError, match=r"lacks train_state\.pt"):
        describe_checkpoint(folder)
