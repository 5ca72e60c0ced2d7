"""Checkpoints under Megatron-FSDP: each rank writes and reads its own shards, and no state of a run is lost."""

import re

import fsdp_work
import pytest
import rank_work

from mb_checkpoint import diff_checkpoints

FULL = {"fsdp": "optim_grads_params"}
SECTION = {"ckpt_format": "fsdp_dtensor"}
BACKGROUND = {"async_save": True, "async_write_results_mp_mode": "fork"}
SHAPES = {
    "complete": (FULL, {}),
    "bf16, overlap": ({**FULL, "bf16": True, "overlap": True}, {"strict_fsdp_dtensor_load": True}),
    "optim_grads, in the background": (
        {"fsdp": "optim_grads"},
        BACKGROUND,
    ),
    "optim": ({"fsdp": "optim"}, {}),
    "no_shard, bf16": ({"fsdp": "no_shard", "bf16": True}, {}),
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_resumed_run_equals_an_uninterrupted_one(two_ranks, tmp_path, name):
    shape, options = SHAPES[name]
    section = {**SECTION, **options}
    straight = two_ranks.run(fsdp_work.saved_state, shape, {"save": str(tmp_path), **section}, 2)
    after = two_ranks.run(
        fsdp_work.resume_training, shape, {"load": str(tmp_path), "save": str(tmp_path), **section}, 2
    )
    assert [(losses, fingerprint) for _, losses, fingerprint, _ in straight] == [
        (losses, fingerprint) for losses, fingerprint, _ in after
    ]
    assert [record.notes for _, _, record in after] == [(), ()]
    assert straight[0][3] == [
        ".metadata",
        "__0_0.distcp",
        "__1_0.distcp",
        "manifest.json",
        "run_config.yaml",
        "train_state.pt",
    ]


def test_the_scale_of_a_loss_is_stored(one_rank, tmp_path):
    """On one rank: with several, Megatron Core requires gradients that some of them do not have."""
    shape, section = {**FULL, "fp16": True}, {"save": str(tmp_path), "load": str(tmp_path), **SECTION}
    straight = one_rank.run(fsdp_work.saved_state, shape, section, 1)
    after = one_rank.run(fsdp_work.resume_training, shape, section, 1)
    assert [each[1:3] for each in straight] == [each[:2] for each in after]


@pytest.mark.parametrize(("writers", "readers"), [("two_ranks", "one_rank"), ("one_rank", "two_ranks")])
def test_another_data_parallel_size_reads_exactly_what_was_written(request, tmp_path, writers, readers):
    reads_exactly(request, tmp_path, writers, readers, {**FULL, "bf16": True}, {**FULL, "bf16": True})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after"),
    [(FULL, FULL), ({**FULL, "tp": 2}, FULL), ({**FULL, "experts": 4, "ep": 2}, {**FULL, "experts": 4})],
    ids=["DP4 to DP2", "TP2 x DP2 to DP2", "EP2 x DP4 to EP1 x DP2"],
)
def test_two_ranks_read_exactly_what_four_wrote(request, tmp_path, before, after):
    reads_exactly(request, tmp_path, "four_ranks", "two_ranks", before, after)


def reads_exactly(request, folder, writers, readers, before, after):
    one, other = str(folder / "one"), str(folder / "other")
    writing, reading = (request.getfixturevalue(name) for name in (writers, readers))
    writing.run(rank_work.train_and_save, before, {"save": one, **SECTION}, 1)
    reading.run(rank_work.load_and_save, after, {"load": one, **SECTION}, {"save": other, **SECTION})
    found = diff_checkpoints(one, other, values=True)
    assert (dict(found.tensors), dict(found.values), dict(found.train_state)) == ({}, {}, {})


@pytest.mark.slow
@pytest.mark.parametrize("shape", [{"tp": 2}, {"experts": 4, "ep": 2}], ids=["TP2", "EP2"])
def test_shards_have_the_positions_that_megatron_reports(four_ranks, shape):
    for same, count, renamed in four_ranks.run(fsdp_work.offsets, {**FULL, **shape}):
        assert same
        assert count > 0
        assert all("linear_fc1" in name or "local_experts" in name for name in renamed)


@pytest.fixture(scope="module")
def saved(two_ranks, tmp_path_factory):
    """Checkpoint of two ranks, and its weights."""
    folder = tmp_path_factory.mktemp("saved")
    found = two_ranks.run(fsdp_work.trained_weights, FULL, {"save": str(folder), **SECTION}, 1)
    return str(folder), found[0]


def test_weights_alone_go_into_a_model_in_one_piece_or_sharded(one_rank, two_ranks, saved):
    folder, weights = saved
    assert one_rank.run(fsdp_work.weights_of, {}, folder) == [weights]
    assert two_ranks.run(fsdp_work.weights_of, FULL, folder) == [weights, weights]


def test_a_partial_load_lists_unmatched_tensors_unless_strict(two_ranks, saved):
    deeper, section = {**FULL, "layers": 3}, {"load": saved[0], **SECTION}
    notes, same, known = two_ranks.run(fsdp_work.other_model, deeper, section, {})[0]
    assert {name.partition("layers.")[2][:1] for name in known} == {"", "0", "1"}
    assert len(same) == 4
    assert all(".layers.2." in name for name in same)
    assert [note.partition("layers.2.")[0] for note in notes] == [
        "tensors: the checkpoint lacks model.module.decoder."
    ]
    assert "they remain unchanged" in notes[0]
    notes, same, _ = two_ranks.run(fsdp_work.other_model, {**FULL, "layers": 1}, section, {})[0]
    assert same == []
    assert "the checkpoint also holds model.module.decoder.layers.1." in notes[0]
    kind, message, _ = two_ranks.run(
        rank_work.error_of, rank_work.load_only, deeper, {**section, "strict_fsdp_dtensor_load": True}, {}
    )[0]
    assert kind == "CheckpointShapeError"
    assert "model.module.decoder.layers.2.input_layernorm.weight: absent in the checkpoint" in message
    fewer = {**FULL, "layers": 1}
    kind, message, _ = two_ranks.run(
        rank_work.error_of, rank_work.load_only, fewer, {**section, "strict_fsdp_dtensor_load": True}, {}
    )[0]
    assert kind == "CheckpointShapeError"
    assert "model.module.decoder.layers.1.input_layernorm.weight: [32] in the checkpoint, absent" in message


@pytest.mark.parametrize(
    ("shape", "section", "expected"),
    [
        ({**FULL, "hidden": 48}, {}, "CheckpointShapeError: .*made by a model of another shape"),
        ({}, {"ckpt_format": "torch_dist"}, "CheckpointLayoutError: .*is of a run under Megatron-FSDP"),
        ({"tp": 2}, {"load_optim": False}, "CheckpointLayoutError: .*'tensor': 2"),
    ],
    ids=["another size", "without Megatron-FSDP", "without it, spread"],
)
def test_what_cannot_be_read_is_rejected(two_ranks, saved, shape, section, expected):
    section = {"load": saved[0], **SECTION, **section}
    kind, message, _ = two_ranks.run(rank_work.error_of, rank_work.load_only, shape, section, {})[0]
    assert re.match(expected, f"{kind}: {message}", re.DOTALL)


def test_what_one_rank_cannot_read_is_an_error_on_all(two_ranks, saved):
    folder = f"{saved[0]}/iter_0000001"
    for kind, message, is_os_error in two_ranks.run(
        rank_work.error_of, fsdp_work.read_missing_object, folder
    ):
        assert (kind, is_os_error) == ("CheckpointReadError", True)
        assert re.search(r"could not be read \(rank 1: .*gone.*some of it is in the model already", message)


def test_a_checkpoint_without_anything_of_the_model_is_rejected(one_rank):
    kind, message, _ = one_rank.run(rank_work.error_of, fsdp_work.request_unknown_tensor)[0]
    assert kind == "CheckpointShapeError"
    assert message == (
        "run: holds none of this model's tensors, such as ours; it has theirs. Load another checkpoint."
    )


def test_joined_projections_are_rejected_where_other_tensor_parallel_ranks_cut_them(one_rank):
    kind, message, _ = one_rank.run(rank_work.error_of, fsdp_work.fused_layer_of_other_tp_size)[0]
    assert kind == "CheckpointLayoutError"
    assert message.startswith("run: was stored by 2 tensor-parallel ranks and this run has 1, because")


def test_a_checkpoint_of_another_layout_is_rejected(one_rank, tmp_path):
    one_rank.run(rank_work.train_and_save, {}, {"save": str(tmp_path)}, 1)
    work = rank_work.load_only, FULL, {"load": str(tmp_path), **SECTION}, {}
    kind, message, _ = one_rank.run(rank_work.error_of, *work)[0]
    assert (kind, "the model is sharded by Megatron-FSDP" in message) == ("CheckpointLayoutError", True)
    kind, message, _ = one_rank.run(rank_work.error_of, fsdp_work.weights_of, FULL, str(tmp_path))[0]
    assert (kind, "before it is wrapped" in message) == ("CheckpointLayoutError", True)


@pytest.mark.parametrize(("shape", "form"), [(FULL, "torch_dist"), ({}, "fsdp_dtensor")])
def test_model_and_layout_fit_each_other(one_rank, tmp_path, shape, form):
    work = rank_work.train_and_save, shape, {"save": str(tmp_path), "ckpt_format": form}, 0
    kind, message, _ = one_rank.run(rank_work.error_of, *work)[0]
    assert kind == "CheckpointLayoutError"
    assert message.startswith(f"checkpoint.ckpt_format: {form}, and the model is")


def test_without_the_stored_optimizer_it_starts_fresh(two_ranks, saved):
    section = {"load": saved[0], "load_optim": False, "load_rng": False, **SECTION}
    notes, fresh = two_ranks.run(fsdp_work.resumed_without_optimizer, FULL, section)[0]
    assert (notes, fresh) == (
        ("optimizer: load_optim is off; it starts fresh", "random state: load_rng is off"),
        True,
    )


def test_blocks_that_do_not_cover_a_tensor_once_are_rejected(two_ranks):
    for kind, message, _ in two_ranks.run(rank_work.error_of, fsdp_work.overlapping):
        assert kind == "ValueError"
        assert message.startswith("Failed to validate global plan")


def test_shards_that_are_cut_again_on_one_rank_are_rejected_on_all(two_ranks):
    for kind, message, _ in two_ranks.run(rank_work.error_of, fsdp_work.mismatched_slices):
        assert message.startswith("rank 1: CheckpointLayoutError: a weight of shape")
        assert (kind, "Set ddp.outer_dp_sharding_strategy=no_shard" in message) == (
            "CheckpointLayoutError",
            True,
        )


def test_a_plan_is_kept_while_every_rank_has_the_same(two_ranks):
    assert two_ranks.run(fsdp_work.same_plan) == [
        (True, [["own", "shared"], ["own", "shared"], ["other", "own", "shared"]]),
        (True, [["own"], ["own"], ["own"]]),
    ]


def test_no_state_is_made_for_what_does_not_fit(two_ranks, saved):
    for found, states in two_ranks.run(fsdp_work.reject_before_making_state, f"{saved[0]}/iter_0000001"):
        assert [kind for kind, _ in found] == ["CheckpointShapeError"] * 2
        assert "model.module.embedding.word_embeddings.weight: absent in the checkpoint" in found[0][1]
        assert "word_embeddings.weight.exp_avg: absent in the checkpoint" in found[1][1]
        assert states == 0


def test_adapters_are_read_strictly_out_of_a_checkpoint_that_has_more(two_ranks, saved):
    found = two_ranks.run(fsdp_work.adapters_from_complete_checkpoint, saved[0])
    notes = ("optimizer: load_optim is off; it starts fresh", "random state: load_rng is off")
    changed = [f"{layer}.self_attention.linear_proj.weight" for layer in range(2)]
    assert found == [(notes, changed)] * 2


def test_a_model_in_megatron_fsdp_is_not_saved_locally(one_rank):
    ((kind, message, _),) = one_rank.run(rank_work.error_of, fsdp_work.save_fsdp_to_local_store, "torch_dist")
    expected = "checkpoint.ckpt_format: torch_dist, and the model is sharded by Megatron-FSDP"
    assert (kind, message.startswith(expected)) == ("CheckpointLayoutError", True)


def test_local_shards_keep_their_identity_within_the_block(one_rank):
    assert one_rank.run(fsdp_work.local_shards) == [(False, True, True)]
