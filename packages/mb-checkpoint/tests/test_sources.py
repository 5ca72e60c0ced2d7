"""Selection of the checkpoint that a run starts from, including non-persistent ones; damaged ones are skipped."""

import re
from functools import partial

import pytest
import tiny_work
from rank_work import error_of

NON_PERSISTENT = {"non_persistent_ckpt_type": "global"}
SHORT = {"non_persistent_ckpt": True}


@pytest.mark.parametrize(
    ("section", "left"),
    [
        ({"most_recent_k": -1}, [2, 3]),
        ({"most_recent_k": 1}, [3]),
        ({"most_recent_k": 3, "save_retain_interval": 1}, [1, 2, 3]),
        ({"most_recent_k": 1, "async_save": True, "async_write_results_mp_mode": "fork"}, [3]),
    ],
    ids=[
        "two where all persistent ones stay",
        "as many as persistent ones",
        "no milestones",
        "in the background",
    ],
)
def test_non_persistent_checkpoints_have_their_own_folder_and_few_are_kept(one_rank, tmp_path, section, left):
    (paths,) = one_rank.run(tiny_work.save_steps, tmp_path, [1, 2, 3], {**NON_PERSISTENT, **section}, SHORT)
    assert paths == [f"non_persistent/iter_000000{step}" for step in (1, 2, 3)]
    there = sorted(path.name for path in (tmp_path / "non_persistent").glob("iter_*"))
    assert there == [f"iter_000000{step}" for step in left]
    assert not list(tmp_path.glob("iter_*"))


@pytest.mark.parametrize(
    ("persistent", "non_persistent", "selected", "reasons"),
    [
        ([10], [12], 12, [("iter_0000010", "older than")]),
        ([10, 20], [12], 20, [("iter_0000012", "older than")]),
        ([10], [10], 10, [("iter_0000010", "older than")]),
        ([], [12], 12, []),
    ],
)
def test_the_newer_of_a_persistent_and_a_non_persistent_checkpoint_is_resumed(
    one_rank, tmp_path, persistent, non_persistent, selected, reasons
):
    one_rank.run(tiny_work.save_steps, tmp_path, persistent, NON_PERSISTENT, {})
    one_rank.run(tiny_work.save_steps, tmp_path, non_persistent, NON_PERSISTENT, SHORT)
    ((source, step, values, skipped),) = one_rank.run(tiny_work.load, tmp_path, NON_PERSISTENT)
    assert (source, step, values) == ("resumed", selected, [float(selected)])
    assert [(name, reason[:10]) for name, reason in skipped] == reasons


def test_a_folder_of_their_own_and_a_named_step(one_rank, tmp_path):
    section = {**NON_PERSISTENT, "non_persistent_global_ckpt_dir": str(tmp_path / "scratch")}
    root = tmp_path / "run"
    one_rank.run(tiny_work.save_steps, root, [10], section, {})
    for step in (12, 14):
        one_rank.run(tiny_work.save_non_persistent, root, step, section)
    assert one_rank.run(tiny_work.load, root, section)[0][1] == 14
    assert one_rank.run(tiny_work.load, root, {**section, "ckpt_step": 10})[0][1] == 10
    assert one_rank.run(tiny_work.load, root / "iter_0000010", {**section, "save": None})[0][1] == 10


def test_the_log_names_the_folder_of_a_non_persistent_checkpoint_and_not_that_of_persistent_ones(
    one_rank, tmp_path
):
    section = {**NON_PERSISTENT, "non_persistent_global_ckpt_dir": str(tmp_path / "fast")}
    (message,) = one_rank.run(tiny_work.message_of_non_persistent, tmp_path / "run", section)
    assert message == f"successfully saved checkpoint from iteration       4 to {tmp_path / 'fast'}"


def test_ranks_that_share_a_sequence_get_their_own_random_states_back(two_ranks, tmp_path):
    (one, again), (other, other_again) = two_ranks.run(tiny_work.random_states_of_context_ranks, tmp_path)
    assert ((one, other), one != other) == ((again, other_again), True)


def test_a_non_persistent_checkpoint_needs_a_type(one_rank, tmp_path):
    ((kind, message, _),) = one_rank.run(error_of, tiny_work.save_steps, tmp_path, [1], {}, SHORT)
    assert (kind, "Set it to global" in message) == ("ValueError", True)


def test_a_flipped_bit_in_any_file_is_found_by_a_load_which_selects_the_previous_checkpoint(
    one_rank, tmp_path
):
    ((outcomes, unchanged),) = one_rank.run(tiny_work.flipped_bits, tmp_path)
    files = [
        ".metadata",
        "__0_0.distcp",
        "manifest.json",
        "metadata.json",
        "run_config.yaml",
        "train_state.pt",
    ]
    assert outcomes == {name: ("resumed", 10, [10.0], True) for name in files}
    assert unchanged == ("resumed", 20)


def test_a_flipped_bit_in_a_checkpoint_that_was_named_is_an_error_on_every_rank(two_ranks, tmp_path):
    errors = two_ranks.run(error_of, tiny_work.flipped_bit_in_a_named_checkpoint, tmp_path)
    found = [(kind, "__0_0.distcp differs from the manifest" in message) for kind, message, _ in errors]
    assert found == [("IncompleteCheckpointError", True)] * 2


@pytest.mark.parametrize(
    ("field", "file", "advice"),
    [
        ("load", "model.safetensors", "A run cannot be resumed from it. Start from its weights"),
        (
            "pretrained_checkpoint",
            "model.safetensors",
            "is not converted yet. Call mb_checkpoint.formats.converted_weights",
        ),
        ("pretrained_checkpoint", "pytorch_model.bin", "Save it with safe serialization"),
    ],
)
def test_a_hugging_face_folder_is_no_checkpoint(one_rank, tmp_path, field, file, advice):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / file).touch()
    ((kind, message, _),) = one_rank.run(error_of, tiny_work.load, tmp_path / "none", {field: str(tmp_path)})
    assert (kind, "in Hugging Face format" in message, advice in message) == (
        "CheckpointNotFoundError",
        True,
        True,
    )


def test_adapters_alone_are_stored_and_the_base_comes_from_the_pretrained_checkpoint(two_ranks, tmp_path):
    two_ranks.run(tiny_work.save_steps, tmp_path / "base", [5], {}, {})
    assert (
        two_ranks.run(tiny_work.load_adapters, tmp_path / "run", tmp_path / "base")
        == [("weights", 0, 5.0, 1.0)] * 2
    )
    assert two_ranks.run(tiny_work.save_adapters, tmp_path / "run", 8) == [["shared"]] * 2
    assert (
        two_ranks.run(tiny_work.load_adapters, tmp_path / "run", tmp_path / "base")
        == [("resumed", 8, 5.0, 8.0)] * 2
    )


def test_each_data_parallel_rank_gets_its_own_position_back(two_ranks, tmp_path):
    files = ["train_dataloader_dprank000.pt", "train_dataloader_dprank001.pt"]
    assert two_ranks.run(tiny_work.stream_positions, tmp_path, False) == [(files, 100), (files, 101)]


def test_a_missing_position_is_an_error(two_ranks, tmp_path):
    for kind, message, _ in two_ranks.run(error_of, tiny_work.stream_positions, tmp_path, True):
        assert kind == "DataloaderStateError", message
        assert message.startswith(
            "data loader: its position could not be restored (rank 1: DataloaderStateError"
        )
        assert "positions of 1 data-parallel ranks, and none of rank 1" in message


def test_a_position_that_one_rank_cannot_save_fails_the_save_on_all(two_ranks, tmp_path):
    for kind, message, left in two_ranks.run(tiny_work.save_lost_stream, tmp_path):
        assert (kind, left) == ("FailedSave", [])
        assert "rank 1: LostStreamError: the stream is gone" in message


@pytest.mark.parametrize("shards", [False, True], ids=["torch_dist", "fsdp_dtensor"])
def test_a_checkpoint_that_rank_0_cannot_read_is_an_error_on_all(two_ranks, tmp_path, shards):
    folder = two_ranks.run(tiny_work.save_steps, tmp_path, [10], {}, {})[0][0]
    found = two_ranks.run(error_of, tiny_work.read_missing_contents, str(tmp_path / folder), shards)
    for kind, message, is_os_error in found:
        assert (kind, is_os_error) == ("CheckpointReadError", True)
        assert re.search(r"could not be read \(rank 0: .*gone.*\), and nothing was changed", message)


def test_modules_with_separate_ranks_are_recorded_separately(two_ranks, tmp_path):
    for layout in two_ranks.run(tiny_work.layout_of_modules, tmp_path):
        assert layout == {
            "vision.tensor_model_parallel_size": 1,
            "vision.data_parallel_size": 1,
            "language.tensor_model_parallel_size": 2,
            "language.data_parallel_size": 1,
            "model_chunks": 1,
            "world_size": 2,
        }


def test_a_checkpoint_that_megatron_wrote_is_resumed_and_gives_weights_without_counters(one_rank, tmp_path):
    ((source, step, values, scheduled, notes),) = one_rank.run(tiny_work.load_from_another_trainer, tmp_path)
    assert (source, step, values, scheduled) == ("resumed", 30, [30.0], 240)
    assert notes[0].startswith("no manifest.json (written by another program)")
    assert notes[1:] == ("random state: the checkpoint holds none",)

    (tmp_path / "iter_0000030" / "train_state.pt").unlink()
    section = {"pretrained_checkpoint": str(tmp_path)}
    assert one_rank.run(tiny_work.load, tmp_path / "none", section) == [("weights", 0, [30.0], [])]
    ((kind, message, _),) = one_rank.run(error_of, tiny_work.load, tmp_path, {})
    assert (kind, "holds no counters: neither train_state.pt nor the arguments" in message) == (
        "CheckpointReadError",
        True,
    )


def test_a_scheduler_without_a_stored_state_starts_fresh_with_a_note(one_rank, tmp_path):
    notes = ("scheduler: the checkpoint holds none; it starts fresh",)
    assert one_rank.run(tiny_work.load_with_a_scheduler, tmp_path) == [(0, notes)]


def test_adapters_need_the_weights_that_they_belong_to(one_rank, tmp_path):
    (tmp_path / "base").mkdir()
    ((kind, message, _),) = one_rank.run(
        error_of, tiny_work.load_adapters, tmp_path / "run", tmp_path / "base"
    )
    assert (
        kind,
        re.match(r"checkpoint\.pretrained_checkpoint: .*base has no checkpoint", message) is not None,
    ) == (
        "CheckpointNotFoundError",
        True,
    )


def test_hashes_are_compared_unless_disabled(one_rank, tmp_path):
    assert one_rank.run(tiny_work.load_with_and_without_hashes, tmp_path) == [[20, 10]]


NOTES = ("weights: the checkpoint lacks 1 of this rank's entries; they remain unchanged",)


def test_tensors_that_the_checkpoint_lacks_remain_unchanged_without_strict(one_rank, tmp_path):
    assert one_rank.run(tiny_work.load_partial, tmp_path, {"strict": False}) == [(1.0, 20.0, NOTES)]
    ((kind, message, _),) = one_rank.run(error_of, tiny_work.load_partial, tmp_path, {})
    assert (kind, "own: absent in the checkpoint, [2, 3] in the model" in message) == (
        "CheckpointShapeError",
        True,
    )


@pytest.mark.parametrize(
    ("options", "older_has_all", "expected"),
    [
        ({"adapter_key_filter": tiny_work.is_adapter}, True, (10, 1.0, 10.0)),
        ({"strict": False}, True, (10, 10.0, 10.0)),
        ({"strict": False, "adapter_key_filter": tiny_work.is_adapter}, False, (10, 1.0, 10.0)),
    ],
    ids=["adapters", "not strict", "not strict, of adapters"],
)
def test_a_part_of_a_damaged_checkpoint_is_replaced_by_that_of_the_previous_one(
    one_rank, tmp_path, options, older_has_all, expected
):
    work = partial(tiny_work.load_damaged, older_has_all=older_has_all)
    assert one_rank.run(work, tmp_path, options) == [expected]


def test_a_tensor_of_a_damaged_checkpoint_that_the_previous_one_lacks_is_an_error(one_rank, tmp_path):
    work = partial(tiny_work.load_damaged, older_has_all=False)
    ((kind, message, _),) = one_rank.run(error_of, work, tmp_path, {"strict": False})
    assert (
        kind,
        "lacks own, which a newer checkpoint has. That one turned out to be damaged" in message,
    ) == (
        "CheckpointShapeError",
        True,
    )


def test_weights_alone_may_come_from_a_part_too(one_rank, tmp_path):
    assert one_rank.run(tiny_work.weights_of_a_part, tmp_path) == [(1.0, 20.0)]


def test_weights_are_saved_alone_and_may_come_from_two_checkpoints(one_rank, tmp_path):
    ((first, own, shared, files),) = one_rank.run(tiny_work.weights_saved_alone, tmp_path)
    assert (first, own, shared) == ([8.0], 8.0, 20.0)
    assert {"run_config.yaml", "tokenizer.json"} <= {*files}


def test_a_base_that_lacks_weights_is_rejected_by_their_names(one_rank, tmp_path):
    one_rank.run(tiny_work.save_adapters, tmp_path / "base", 8)
    ((kind, message, _),) = one_rank.run(
        error_of, tiny_work.load_adapters, tmp_path / "run", tmp_path / "base"
    )
    assert (kind, "own: absent in the checkpoint, [2, 3] in the model" in message) == (
        "CheckpointShapeError",
        True,
    )


def test_numbers_and_texts_of_the_arguments_of_megatron_lm_are_stored_and_returned(one_rank, tmp_path):
    found = one_rank.run(tiny_work.arguments_of_a_resumed_run, tmp_path)
    assert found == [{"num_layers": 2, "betas": (0.9, 0.95)}]
