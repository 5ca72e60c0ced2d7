"""Train, save, resume, train: the same numbers as in an uninterrupted run, with dropout."""

import pytest
import rank_work

FULL = {"dist_ckpt_optim_fully_reshardable": True}
BUCKETS = {"dist_opt": True, "bf16": True, "bucket_size": 3000}
LAYOUTS = {
    "one process": ({}, {}, 5),
    "one process, bf16": ({"bf16": True}, {}, 3),
    "one process, SGD": ({"optimizer": "sgd"}, {}, 3),
    "one process, SGD, bf16": ({"optimizer": "sgd", "bf16": True}, {}, 3),
    "one process, AdamW of torch": ({"plain": True}, {}, 3),
    "TP2, AdamW of torch": ({"plain": True, "tp": 2}, {}, 3),
    "DP2, AdamW of torch": ({"plain": True}, {}, 3),
    "DP2": ({}, {}, 3),
    "DP2, distributed optimizer": ({"dist_opt": True}, {}, 3),
    "DP2, distributed optimizer, fully reshardable": ({"dist_opt": True}, FULL, 3),
    "DP2, distributed optimizer, bf16, many padded buckets": (BUCKETS, {}, 3),
    "DP2, distributed optimizer, bf16, many padded buckets, fully reshardable": (BUCKETS, FULL, 3),
    "TP2": ({"tp": 2}, {}, 3),
    "PP2": ({"pp": 2}, {}, 3),
    "PP2, two virtual stages": ({"pp": 2, "vpp": 2, "layers": 4}, {}, 3),
}


BEFORE_THE_FIRST_UPDATE = {
    "one process": ({}, 0),
    "one process, bf16": ({"bf16": True}, 0),
    "one process, fp16, while it lowers the loss scale": ({"fp16": True}, 2),
    "one process, SGD": ({"optimizer": "sgd"}, 0),
    "one process, SGD, bf16": ({"optimizer": "sgd", "bf16": True}, 0),
    "one process, distributed optimizer, bf16": ({"dist_opt": True, "bf16": True}, 0),
    "one process, AdamW of torch": ({"plain": True}, 0),
    "DP2, bf16": ({"bf16": True}, 0),
    "TP2, bf16": ({"bf16": True, "tp": 2}, 0),
    "PP2, two virtual stages, bf16": ({"bf16": True, "pp": 2, "vpp": 2, "layers": 4}, 0),
    "EP2, bf16": ({"bf16": True, "ep": 2, "experts": 2}, 0),
}


@pytest.mark.parametrize("layout", BEFORE_THE_FIRST_UPDATE)
def test_a_run_that_is_saved_before_its_first_update_is_resumed(layout, request, tmp_path):
    ranks = request.getfixturevalue("one_rank" if layout.startswith("one") else "two_ranks")
    (shape, cut), folder = BEFORE_THE_FIRST_UPDATE[layout], str(tmp_path)
    straight = ranks.run(rank_work.train_uninterrupted, shape, cut + 3)
    before = ranks.run(rank_work.first_part, shape, {"save": folder}, cut)
    after = ranks.run(rank_work.second_part, shape, {"load": folder}, 3)
    assert [first[0] + second[0] for first, second in zip(before, after, strict=True)] == [
        losses for losses, _ in straight
    ]
    assert [fingerprint for _, fingerprint, _ in after] == [fingerprint for _, fingerprint in straight]


def resumed_as_straight(ranks, shape, section, cut):
    """Compare a run that is resumed half-way with an uninterrupted one; return what its second half returned."""
    straight = ranks.run(rank_work.train_uninterrupted, shape, 2 * cut)
    before = ranks.run(rank_work.first_part, shape, section, cut)
    after = ranks.run(rank_work.second_part, shape, {**section, "load": section["save"]}, cut)
    assert [first[0] + second[0] for first, second in zip(before, after, strict=True)] == [
        losses for losses, _ in straight
    ]
    assert [fingerprint for _, fingerprint, _ in after] == [fingerprint for _, fingerprint in straight]
    return after


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_resumed_run_equals_a_straight_one_bit_for_bit(layout, request, tmp_path):
    ranks = request.getfixturevalue("one_rank" if layout.startswith("one") else "two_ranks")
    (shape, section, cut), folder = LAYOUTS[layout], str(tmp_path)
    after = resumed_as_straight(ranks, shape, {"save": folder, **section}, cut)
    assert [record.notes for _, _, record in after] == [()] * len(after)


@pytest.mark.parametrize("expert_layers", [(0, 1), (1, 0)], ids=["last stage", "first stage"])
@pytest.mark.parametrize("options", [{}, {"bf16": True}, {"dist_opt": True}], ids=["", "bf16", "distributed"])
def test_experts_on_one_of_two_pipeline_stages_are_resumed_bit_for_bit(
    four_ranks, tmp_path, expert_layers, options
):
    shape = {"pp": 2, "ep": 2, "experts": 2, "expert_layers": expert_layers, **options}
    after = resumed_as_straight(four_ranks, shape, {"save": str(tmp_path)}, 2)
    assert [record.notes for _, _, record in after] == [()] * 4


def test_a_weight_that_never_had_a_gradient_is_resumed_without_optimizer_state(one_rank, tmp_path):
    shape, folder = {"plain": True, "unused": "module.decoder.final_layernorm.weight"}, str(tmp_path)
    ((_, straight),) = one_rank.run(rank_work.train_uninterrupted, shape, 4)
    one_rank.run(rank_work.first_part, shape, {"save": folder}, 2)
    ((_, resumed, loaded),) = one_rank.run(rank_work.second_part, shape, {"load": folder}, 2)
    assert resumed == straight
    assert loaded.notes == ("optimizer: the checkpoint holds no state of 1 parameters; theirs starts fresh",)
