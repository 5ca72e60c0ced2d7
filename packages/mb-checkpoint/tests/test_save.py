"""Files that a save writes; a failing save changes nothing."""

from pathlib import Path

import pytest
import rank_work
import tiny_work

from mb_checkpoint import select_checkpoint
from mb_checkpoint.formats.layout import steps_in


def names(folder):
    return sorted(path.name for path in Path(folder).iterdir())


def test_the_layout_on_disk_the_event_and_the_line_for_log_readers(one_rank, tmp_path):
    ((seen, files, message, found),) = one_rank.run(
        rank_work.events_and_assets, {"save": str(tmp_path), "load": str(tmp_path)}
    )
    assert names(tmp_path) == ["iter_0000000", "latest_checkpointed_iteration.txt", "latest_train_state.pt"]
    expected = [
        ".metadata",
        "manifest.json",
        "metadata.json",
        "run_config.yaml",
        "tokenizer.json",
        "train_state.pt",
    ]
    assert [name for name in files if not name.endswith(".distcp")] == expected
    assert seen == [("on_checkpoint_save", 0)]
    assert message == f"successfully saved checkpoint from iteration       0 to {tmp_path}"
    assert found == (False, True)


def test_two_writers_a_rank_give_two_files_a_rank(two_ranks, tmp_path):
    two_ranks.run(rank_work.first_part, {}, {"save": str(tmp_path), "storage_writers_per_rank": 2}, 1)
    files = [name for name in names(tmp_path / "iter_0000001") if name.endswith(".distcp")]
    assert files == ["__0_0.distcp", "__0_1.distcp", "__1_0.distcp", "__1_1.distcp"]


@pytest.mark.parametrize(
    "section",
    [
        {
            "ckpt_fully_parallel_save_process_group": "ep_dp",
            "ckpt_fully_parallel_load_process_group": "ep_dp",
        },
        {"fully_parallel_save": False},
    ],
    ids=["expert-parallel groups", "one writer"],
)
def test_ways_to_write_that_differ_only_in_speed(two_ranks, tmp_path, section):
    shape, folder = {"dist_opt": True}, str(tmp_path)
    straight = two_ranks.run(rank_work.train_uninterrupted, shape, 3)
    two_ranks.run(rank_work.saved_after_each_step, shape, {"save": folder, **section}, 3)
    reading = {"load": folder, "fully_parallel_load": True, **section}
    after = two_ranks.run(rank_work.second_part, shape, reading, 0)
    assert [fingerprint for _, fingerprint, _ in after] == [fingerprint for _, fingerprint in straight]


def test_a_structure_assumed_constant_is_compared(two_ranks, tmp_path):
    """Adam has no state before its first update, as in float16 whose first steps overflow."""
    shape, folder = {}, str(tmp_path)
    straight = two_ranks.run(rank_work.train_uninterrupted, shape, 3)
    section = {"save": folder, "ckpt_assume_constant_structure": True}
    two_ranks.run(rank_work.saved_after_each_step, shape, section, 3, True)
    after = two_ranks.run(rank_work.second_part, shape, {"load": folder}, 0)
    assert [fingerprint for _, fingerprint, _ in after] == [fingerprint for _, fingerprint in straight]


def test_old_checkpoints_are_deleted(one_rank, tmp_path):
    for steps in (1, 2, 3):
        one_rank.run(rank_work.first_part, {}, {"save": str(tmp_path), "most_recent_k": 2}, steps)
    assert list(steps_in(tmp_path)) == [3, 2]


@pytest.mark.parametrize("work", [rank_work.save_with_failing_config, rank_work.full_disk])
def test_a_failing_save_leaves_the_previous_checkpoint_and_nothing_else(two_ranks, tmp_path, work):
    section = {"save": str(tmp_path), "on_save_error": "raise"}
    errors = two_ranks.run(rank_work.error_of, work, {}, section)
    assert [(kind, is_os_error) for kind, _, is_os_error in errors] == [("CheckpointSaveError", True)] * 2
    assert all("checkpoint save at step 2 to" in message and "free" in message for _, message, _ in errors)
    assert names(tmp_path) == ["iter_0000001", "latest_checkpointed_iteration.txt", "latest_train_state.pt"]
    assert select_checkpoint(tmp_path).step == 1


@pytest.mark.parametrize(
    ("section", "options", "kind"),
    [
        ({"save": "x"}, {"non_persistent_ckpt": True}, "ValueError"),
        ({"save": "x"}, {"module_name": "vision"}, "NotImplementedError"),
        ({}, {}, "ValueError"),
    ],
)
def test_options_that_are_not_stored_are_rejected(one_rank, section, options, kind):
    assert one_rank.run(rank_work.error_of, rank_work.save_with, section, options)[0][0] == kind


def test_an_invalid_section_is_rejected_with_every_reason(one_rank):
    section = {"async_save": True, "most_recent_k": 0, "save_params_interval": 5}
    ((kind, message, _),) = one_rank.run(rank_work.error_of, rank_work.load_only, {}, section, {})
    assert (kind, [line.partition(" ")[0] for line in message.splitlines()]) == (
        "CheckpointRulesError",
        ["[V066]", "[CK01]", "[CK28]"],
    )


def test_a_group_that_was_not_passed_cannot_share_the_writing(one_rank, tmp_path):
    section = {"ckpt_fully_parallel_save_process_group": "ep_dp"}
    ((kind, message, _),) = one_rank.run(
        rank_work.error_of, tiny_work.save_steps, tmp_path, [10], section, {}
    )
    assert (kind, "have no expt_dp. Pass it, or set it to dp" in message) == ("ValueError", True)


@pytest.mark.parametrize(
    ("section", "options", "root"),
    [
        ({}, {}, "."),
        ({"non_persistent_ckpt_type": "global"}, {"non_persistent_ckpt": True}, "non_persistent"),
    ],
    ids=["persistent", "non_persistent"],
)
def test_a_failure_that_does_not_end_the_run_is_reported_with_its_folder(
    one_rank, tmp_path, section, options, root
):
    found = one_rank.run(tiny_work.fails_to_save, tmp_path, section, options)
    assert found == [(str(tmp_path / root), True, [("on_checkpoint_failed", 20)])]


def test_a_process_group_is_needed(one_rank, tmp_path):
    ((kind, message, _),) = one_rank.run(
        rank_work.error_of, rank_work.without_process_group, {"save": str(tmp_path)}
    )
    assert (kind, "init_process_group" in message) == ("RuntimeError", True)


def test_a_failure_of_rank_0_is_raised_as_it_is_on_every_rank(two_ranks):
    assert (
        two_ranks.run(rank_work.rank_zero_fails)
        == [("FileNotFoundError", "[Errno 2] No such file: 'x'", True)] * 2
    )


@pytest.mark.parametrize("reason", ["local", "refuses"])
def test_an_exception_that_cannot_be_pickled_is_raised_with_its_text(two_ranks, reason):
    assert (
        two_ranks.run(rank_work.rank_zero_fails_unpicklable, reason)
        == [("RuntimeError", "LocalError: only here", False)] * 2
    )


def test_a_load_requests_no_torch_optimizer_state_of_a_frozen_parameter(one_rank):
    ((stored, requested),) = one_rank.run(tiny_work.torch_optimizer_entries_with_a_frozen_parameter)
    assert stored == requested == ["optimizer.state.exp_avg.trained", "optimizer.state.exp_avg_sq.trained"]


def test_torch_optimizers_whose_state_cannot_be_sharded_are_rejected(one_rank):
    ((other_shape, other_steps),) = one_rank.run(tiny_work.unsupported_torch_optimizers)
    assert "of Adafactor has another shape than its parameter" in other_shape
    assert "AdamW has made [1.0, 2.0] steps, depending on the parameter" in other_steps


def test_a_tensor_without_elements_is_rejected_with_its_name(one_rank, tmp_path):
    ((kind, message, _),) = one_rank.run(
        rank_work.error_of, rank_work.save_with_empty_buffer, {"save": str(tmp_path)}
    )
    assert kind == "CheckpointLayoutError"
    assert "decoder.layers.mlp.linear_fc1.cache has no elements (shape [2, 0, 4])" in message
    assert names(tmp_path) == []
