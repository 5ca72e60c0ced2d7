"""Checkpoints on the disk of each node: newer than the shared ones, and available after the loss of a disk."""

import importlib.util
from functools import partial

import pytest
import rank_work
import tiny_work
from rank_work import error_of

from mb_checkpoint.state.dataloader import encode_position, position_file_name

NVRX = importlib.util.find_spec("nvidia_resiliency_ext") is not None
needs_nvrx = pytest.mark.skipif(not NVRX, reason="nvidia-resiliency-ext is not installed")


@needs_nvrx
@pytest.mark.parametrize("algorithm", ["fully_parallel", "atomic"])
def test_a_node_that_lost_its_disk_gets_its_part_from_another(two_ranks, tmp_path, algorithm):
    section = {"replication": True, "replication_jump": 1, "non_persistent_local_ckpt_algo": algorithm}
    found = two_ranks.run(tiny_work.lose_a_node, tmp_path, section, 1)
    assert found == [("resumed", 14, [14.0], ["iter_0000010"])] * 2


@needs_nvrx
def test_without_copies_a_lost_disk_means_the_shared_checkpoint(two_ranks, tmp_path):
    found = two_ranks.run(tiny_work.lose_a_node, tmp_path, {}, 1)
    assert found == [("resumed", 10, [10.0], [])] * 2


@needs_nvrx
def test_a_local_file_is_written_when_the_copies_to_the_host_have_arrived(one_rank):
    assert one_rank.run(tiny_work.order_of_a_local_save) == [["wait for the device", "write"]]


@needs_nvrx
def test_an_interrupted_local_save_does_not_block_the_next(two_ranks, tmp_path):
    two_ranks.run(tiny_work.lose_a_node, tmp_path, {}, None)
    for rank in range(2):
        (tmp_path / f"node{rank}" / str(rank) / f"iter_0000016_{rank}_local.dirty.pt").touch()
    assert two_ranks.run(tiny_work.save_local, tmp_path, 16) == [16, 16]


@needs_nvrx
def test_code_in_a_local_checkpoint_is_rejected_on_all_ranks(two_ranks, tmp_path):
    for kind, message, _ in two_ranks.run(error_of, tiny_work.load_local_code, tmp_path):
        assert kind == "CheckpointReadError"
        assert "names posix.mkdir, which reading it would execute" in message
    assert not (tmp_path / "executed").exists()


def test_local_checkpoints_without_their_library_are_rejected_with_the_reason(one_rank, tmp_path):
    ((kind, message, _),) = one_rank.run(error_of, tiny_work.save_local_without_nvrx, tmp_path, 2)
    assert (kind, "Install mb-checkpoint[nvrx], or set it to global." in message) == ("LocalStoreError", True)


@pytest.mark.parametrize(
    ("shared", "local", "section", "taken", "passed"),
    [
        ([10], [12, 14], {}, ("resumed", 14, 14.0), ["iter_0000010"]),
        ([10, 20], [12], {}, ("resumed", 20, 20.0), []),
        ([10], [10], {}, ("resumed", 10, 10.0), ["iter_0000010"]),
        ([], [12], {}, ("resumed", 12, 12.0), []),
        ([10], [], {}, ("resumed", 10, 10.0), []),
        ([10], [12], {"ckpt_step": 10}, ("resumed", 10, 10.0), []),
        ([10], [12], {"finetune": True}, ("weights", 1, 10.0), []),
    ],
    ids=["newer", "older", "of the same step", "alone", "none", "a named step", "weights alone"],
)
def test_a_local_checkpoint_is_selected_unless_a_shared_one_is_newer_or_named(
    one_rank, tmp_path, shared, local, section, taken, passed
):
    ((source, step, values, skipped),) = one_rank.run(
        tiny_work.load_with_local_store, tmp_path, shared, local, section, {}
    )
    assert (source, step, values, skipped) == (taken[0], taken[1], [taken[2]], passed)


def test_the_line_about_a_local_checkpoint_names_the_folder_on_each_node(one_rank, tmp_path):
    assert one_rank.run(tiny_work.message_of_local_save, tmp_path) == [
        f"successfully saved checkpoint from iteration      12 to {tmp_path}/on each node"
    ]


def test_a_load_that_is_not_strict_takes_the_weights_of_a_local_checkpoint(one_rank, tmp_path):
    found = one_rank.run(tiny_work.load_with_local_store, tmp_path, [10], [12], {}, {"strict": False})
    assert found == [("resumed", 12, [12.0], ["iter_0000010"])]


def test_a_manager_loads_where_there_are_only_local_ones(one_rank, tmp_path):
    assert one_rank.run(tiny_work.load_only_local, tmp_path) == [(False, "resumed", 12, [12.0])]


def test_a_local_checkpoint_that_one_rank_cannot_write_is_an_oserror_on_all(two_ranks, tmp_path):
    for kind, message, is_os_error in two_ranks.run(
        error_of, tiny_work.save_to_full_local_store, tmp_path, {}
    ):
        assert (kind, is_os_error) == ("CheckpointSaveError", True)
        assert f"checkpoint save at step 12 to {tmp_path} failed" in message
        assert "rank 1: No space left on device" in message


def test_one_module_of_several_is_not_saved_locally(one_rank, tmp_path):
    options = {"module_name": "vision"}
    ((kind, *_),) = one_rank.run(error_of, tiny_work.save_to_full_local_store, tmp_path, options)
    assert kind == "NotImplementedError"


NO_POSITION = ("data loader: no position was stored; it starts from the beginning",)


@pytest.mark.parametrize(
    ("loaders", "options", "expected"),
    [
        ((0, 1), {}, [(100, (), [12.0]), (101, (), [12.0])]),
        ((0,), {}, [(100, NO_POSITION, [12.0]), (0, NO_POSITION, [12.0])]),
        ((), {}, [(0, NO_POSITION, [12.0])] * 2),
        ((0, 1), {"skip_load_to_model_and_opt": True}, [(100, (), [1.0]), (101, (), [1.0])]),
    ],
    ids=["all", "one", "none", "counters and positions alone"],
)
def test_local_checkpoints_hold_the_positions_of_data_loaders(
    two_ranks, tmp_path, loaders, options, expected
):
    found = two_ranks.run(tiny_work.local_stream_positions, tmp_path, loaders, options)
    assert found == [(position, notes, 12, values) for position, notes, values in expected]


def test_positions_in_a_separate_folder_are_restored_with_local_checkpoints(one_rank, tmp_path):
    file = tmp_path / "elsewhere" / "iter_0000012" / position_file_name(0)
    file.parent.mkdir(parents=True)
    file.write_bytes(encode_position(tiny_work.Loader(7)))
    options = {"dataloader_load": tmp_path / "elsewhere"}
    ((position, *_),) = one_rank.run(tiny_work.local_stream_positions, tmp_path / "run", (0,), options)
    assert position == 7
    file.unlink()
    ((position, *_),) = one_rank.run(tiny_work.local_stream_positions, tmp_path / "again", (0,), options)
    assert position == 100


@needs_nvrx
def test_on_each_node_a_run_resumes_with_the_sample_after_the_last(two_ranks, tmp_path):
    found = two_ranks.run(tiny_work.resume_from_each_node, tmp_path, [12, 14])
    assert found == [(14, [14.0], 14 + rank, ()) for rank in range(2)]


@needs_nvrx
def test_a_full_disk_of_one_node_fails_the_save_on_all_and_loses_nothing(two_ranks, tmp_path):
    for kind, message, taken, after in two_ranks.run(tiny_work.fill_disk_of_one_node, tmp_path):
        assert (kind, taken, after) == ("FailedSave", 12, 16)
        assert "rank 1: " in message


@needs_nvrx
def test_the_library_may_be_imported_after_the_model_was_trained(one_rank, tmp_path):
    shape = {"dist_opt": True, "bf16": True}
    assert one_rank.run(rank_work.resume_from_local_disk, str(tmp_path), shape, 2) == [(False, [True] * 5)]


@needs_nvrx
def test_a_local_checkpoint_has_tensors_that_the_one_before_had_not(two_ranks, tmp_path):
    """Adam has no state before its first update."""
    for _, equal in two_ranks.run(rank_work.resume_from_local_disk, str(tmp_path), {}, 0, 2):
        assert all(equal)


@needs_nvrx
@pytest.mark.parametrize("shape", [{}, {"bf16": True}, {"dist_opt": True, "bf16": True}])
def test_a_local_checkpoint_before_the_first_update_is_resumed(one_rank, tmp_path, shape):
    ((_, equal),) = one_rank.run(rank_work.resume_from_local_disk, str(tmp_path), shape, 0)
    assert equal[0], "weights"
    assert all(equal[2:]), "learning rates and random states"
    assert equal[1] or "dist_opt" in shape, "the distributed optimizer creates its state for a load"


@needs_nvrx
def test_a_local_checkpoint_of_another_kind_of_optimizer_is_rejected(one_rank, tmp_path):
    resume = partial(rank_work.resume_from_local_disk, changed={"dist_opt": True})
    ((kind, text, _),) = one_rank.run(rank_work.error_of, resume, str(tmp_path), {}, 1)
    assert kind == "CheckpointLayoutError"
    assert (
        "was stored by the float32 optimizer, and this run has the distributed one; a local checkpoint"
        in text
    )
