"""Loading: restored state, notes on state that is not restored, and rejected checkpoints."""

import shutil
from pathlib import Path

import pytest
import rank_work
import tiny_work

OPTIMIZER_FRESH = "optimizer: {}; it starts fresh"


@pytest.fixture(scope="module")
def saved(one_rank, tmp_path_factory):
    """Single-process run with checkpoints of steps 2 and 4."""
    folder = str(tmp_path_factory.mktemp("saved"))
    one_rank.run(rank_work.first_part, {}, {"save": folder}, 2)
    one_rank.run(rank_work.first_part, {}, {"save": folder}, 4)
    return folder


def load(one_rank, section, **options):
    ((changed, step, record),) = one_rank.run(rank_work.outcome_of_load, {}, section, options)
    return changed, step, record.source, record.step, record.notes


def test_a_run_is_resumed_completely(one_rank, saved):
    everything = ["weights", "optimizer", "torch", "trackers"]
    assert load(one_rank, {"load": saved}) == (everything, 4, "resumed", 4, ())


def test_a_wanted_step_is_resumed(one_rank, saved):
    assert load(one_rank, {"load": saved, "ckpt_step": 2})[1:4] == (2, "resumed", 2)


def test_a_model_that_modelopt_changed_is_rejected(one_rank, saved, tmp_path):
    folder = shutil.copytree(saved, tmp_path / "copy")
    (folder / "iter_0000004" / "modelopt_state").mkdir()
    kind, message, _ = error(one_rank, rank_work.load_only, {}, {"load": str(folder)}, {})
    assert kind == "CheckpointReadError"
    assert "holds modelopt_state, the state of a model quantized or pruned by ModelOpt" in message


def test_nothing_to_load_is_a_note_and_not_an_error(one_rank, tmp_path):
    notes = ("no checkpoint found: random weights, step 0",)
    section = {"load": str(tmp_path), "save": str(tmp_path)}
    assert load(one_rank, section) == ([], 0, "nothing", 0, notes)


def test_finetuning_takes_the_weights_and_begins_at_step_0(one_rank, saved):
    changed, *rest = load(one_rank, {"load": saved, "finetune": True})
    assert "torch" not in changed
    assert "weights" in changed
    assert rest == [0, "weights", 0, ()]


@pytest.mark.parametrize("form", [".", "iter_0000002"])
def test_pretrained_weights_begin_at_step_0_in_both_forms(one_rank, saved, tmp_path, form):
    section = {"load": str(tmp_path), "save": str(tmp_path), "pretrained_checkpoint": str(Path(saved) / form)}
    assert load(one_rank, section)[1:4] == (0, "weights", 0)


def test_resuming_beats_pretrained_weights(one_rank, saved):
    section = {"load": saved, "pretrained_checkpoint": str(Path(saved) / "iter_0000002")}
    assert load(one_rank, section)[1:4] == (4, "resumed", 4)


def test_what_is_declined_is_left_and_named(one_rank, saved):
    notes = (OPTIMIZER_FRESH.format("load_optim is off"), "random state: load_rng is off")
    changed, *rest = load(one_rank, {"load": saved, "load_optim": False, "load_rng": False})
    assert "torch" not in changed
    assert rest == [4, "resumed", 4, notes]


def test_what_was_not_saved_is_named(one_rank, tmp_path):
    one_rank.run(rank_work.first_part, {}, {"save": str(tmp_path), "save_optim": False, "save_rng": False}, 2)
    notes = (OPTIMIZER_FRESH.format("the checkpoint holds none"), "random state: the checkpoint holds none")
    assert load(one_rank, {"load": str(tmp_path)})[1:] == (2, "resumed", 2, notes)


def test_counters_alone_can_be_restored(one_rank, saved):
    expected = ([], 4, "resumed", 4, ())
    assert load(one_rank, {"load": saved}, skip_load_to_model_and_opt=True) == expected


def test_sampling_loads_weights_alone(one_rank, saved):
    (expected,) = one_rank.run(rank_work.weights, {}, 4)
    assert one_rank.run(rank_work.outcome_of_weights, {}, saved, 5) == [(expected, 4)]


def test_weights_of_one_process_fit_two_tensor_parallel_ranks_and_the_random_state_does_not(two_ranks, saved):
    outcomes = two_ranks.run(rank_work.outcome_of_load, {"tp": 2}, {"load": saved}, {})
    note = "random state: stored for another parallel layout; this run keeps its own"
    assert [(step, record.notes) for _, step, record in outcomes] == [(4, (note,))] * 2


def test_another_data_parallel_size_reads_the_distributed_optimizer(one_rank, two_ranks, tmp_path):
    shape, folder = {"dist_opt": True, "bf16": True}, str(tmp_path)
    two_ranks.run(rank_work.first_part, shape, {"save": folder}, 2)
    (_, _, record), *_ = one_rank.run(rank_work.outcome_of_load, shape, {"load": folder}, {})
    assert (record.step, record.notes) == (2, ())


def test_the_fully_reshardable_form_is_read_by_any_layout(two_ranks, tmp_path):
    shape, folder = {"dist_opt": True}, str(tmp_path)
    section = {"save": folder, "dist_ckpt_optim_fully_reshardable": True}
    two_ranks.run(rank_work.first_part, {**shape, "tp": 2}, section, 1)
    (changed, _, record), *_ = two_ranks.run(
        rank_work.outcome_of_load, {**shape, "pp": 2}, {"load": folder}, {}
    )
    assert (changed[:2], record.step) == (["weights", "optimizer"], 1)


def test_reading_in_parallel_gives_the_same(two_ranks, tmp_path):
    folder = str(tmp_path)
    two_ranks.run(rank_work.first_part, {}, {"save": folder, "storage_writers_per_rank": 2}, 2)
    plain = two_ranks.run(rank_work.second_part, {}, {"load": folder, "fully_parallel_load": False}, 0)
    shared = two_ranks.run(rank_work.second_part, {}, {"load": folder}, 0)
    assert shared == plain


def test_each_replica_gets_its_own_random_state_and_other_numbers_of_replicas_none(
    one_rank, two_ranks, tmp_path
):
    folder = str(tmp_path)
    (a, a_again), (b, b_again) = two_ranks.run(
        rank_work.replicas_that_drew_differently, {"save": folder, "load": folder}
    )
    assert (a, b) == (a_again, b_again)
    assert a != b
    (alone,) = one_rank.run(rank_work.load_only, {}, {"load": folder}, {})
    assert alone.notes[-1] == "random state: stored for another number of replicas; this run keeps its own"


def error(ranks, work, *args):
    return ranks.run(rank_work.error_of, work, *args)[0]


def test_a_model_of_another_shape_is_rejected_with_names_and_both_shapes(one_rank, saved):
    shape = {"hidden": 64}
    kind, message, _ = error(one_rank, rank_work.load_only, shape, {"load": saved}, {})
    assert kind == "CheckpointShapeError"
    assert "decoder.final_layernorm.weight: [32] in the checkpoint, [64] in the model;" in message
    assert "more. Set the model as in" in message


def test_a_model_with_another_number_of_layers_is_rejected(one_rank, saved):
    kind, message, _ = error(one_rank, rank_work.load_only, {"layers": 4}, {"load": saved}, {})
    assert (kind, "[2, 32] in the checkpoint, [4, 32] in the model" in message) == (
        "CheckpointShapeError",
        True,
    )


def test_an_optimizer_of_another_layout_is_rejected_on_every_rank(one_rank, two_ranks, tmp_path):
    one_rank.run(rank_work.first_part, {"dist_opt": True}, {"save": str(tmp_path)}, 1)
    shape = {"dist_opt": True, "tp": 2}
    errors = two_ranks.run(rank_work.error_of, rank_work.load_only, shape, {"load": str(tmp_path)}, {})
    assert [(kind, "'tensor_model_parallel_size': 1" in message) for kind, message, _ in errors] == [
        ("CheckpointLayoutError", True)
    ] * 2


def test_strictness_does_not_count_what_the_run_declines(one_rank, two_ranks, saved):
    strict = {"load": saved, "dist_ckpt_strictness": "raise_all"}
    for section in ({}, {"load_optim": False}, {"load_rng": False}):
        (_, _, record), *_ = one_rank.run(rank_work.outcome_of_load, {}, {**strict, **section}, {})
        assert record.step == 4
    # random states of another layout
    (_, _, record), *_ = two_ranks.run(rank_work.outcome_of_load, {"tp": 2}, strict, {})
    assert record.step == 4


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"exit_on_missing_checkpoint": True}, "has no checkpoint"),
        ({"pretrained_checkpoint": "/tmp"}, "checkpoint.load: "),
        ({"ckpt_step": 7}, "does not exist; steps there: none"),
    ],
)
def test_a_missing_checkpoint_is_an_error_where_one_is_needed(one_rank, tmp_path, section, message):
    kind, text, is_os_error = error(one_rank, rank_work.load_only, {}, {"load": str(tmp_path), **section}, {})
    assert (kind, message in text, is_os_error) == ("CheckpointNotFoundError", True, True)


def test_weights_from_an_empty_folder_are_an_error(one_rank, tmp_path):
    kind, *_ = error(one_rank, rank_work.outcome_of_weights, {}, str(tmp_path), 1)
    assert kind == "CheckpointNotFoundError"


def test_one_module_of_several_is_not_supported(one_rank, saved):
    kind, *_ = error(one_rank, rank_work.load_only, {}, {"load": saved}, {"module_name": "vision"})
    assert kind == "NotImplementedError"


@pytest.mark.parametrize("shape", [{}, {"dist_opt": True}], ids=["plain", "distributed optimizer"])
@pytest.mark.parametrize(("value", "expected"), [(False, [False, True]), (True, [True, False])])
def test_master_weights_are_the_rounded_ones_or_those_that_were_stored(
    one_rank, tmp_path, shape, value, expected
):
    section = {"load_main_params_from_ckpt": value}
    assert one_rank.run(rank_work.master_weights, str(tmp_path), shape, section) == [expected]


def test_a_tensor_property_that_a_later_torch_adds_does_not_stop_a_load(one_rank, tmp_path):
    assert one_rank.run(tiny_work.load_with_later_properties, tmp_path) == [("resumed", 10)]


def test_each_file_is_read_by_the_rank_that_wrote_it_and_the_index_by_rank_0(two_ranks, tmp_path):
    shape, folder = {"dist_opt": True}, str(tmp_path)
    two_ranks.run(rank_work.first_part, shape, {"save": folder}, 2)
    (first, _), (second, _) = two_ranks.run(rank_work.files_read_by_load, shape, {"load": folder})
    data = [{name for name in files if name.endswith(".distcp")} for files in (first, second)]
    # found and verified by one rank each, read once for both
    assert first[".metadata"] + second.get(".metadata", 0) == 3
    assert "manifest.json" not in second
    assert data == [{"__0_0.distcp"}, {"__1_0.distcp", "__0_0.distcp"}]
