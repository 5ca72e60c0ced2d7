"""Resuming with another learning rate, weight decay or other settings of the optimizer."""

import math

import pytest
import rank_work
import schedule_work

KINDS = {
    "one": ({}, "one_rank"),
    "one, bf16": ({"bf16": True}, "one_rank"),
    "DP2, distributed optimizer, bf16": ({"dist_opt": True, "bf16": True}, "two_ranks"),
    "TP2": ({"tp": 2}, "two_ranks"),
}
CHANGES = {"lr": 4e-2, "min_lr": 1e-3, "weight_decay": 0.3, "adam_beta2": 0.9}
AFTER_3_STEPS = 1e-4 + 0.5 * (1 + math.cos(math.pi * (24 - 16) / 384)) * (1e-2 - 1e-4)
"""Learning rate of the saved schedule after 3 steps of 8 sequences."""


@pytest.mark.parametrize("kind", KINDS)
def test_the_configured_values_apply_and_the_moments_stay(kind, request, tmp_path):
    shape, ranks = KINDS[kind]
    changes = {**CHANGES, "override": True}
    for notes, same, used, state in request.getfixturevalue(ranks).run(
        schedule_work.resumed, shape, str(tmp_path), {}, changes
    ):
        assert notes == (
            "scheduler: the configured values apply: optimizer.lr: 0.04 here, 0.01 in the checkpoint, "
            "optimizer.min_lr: 0.001 here, 0.0001 in the checkpoint, "
            "weight decay at the start: 0.3 here, 0.01 in the checkpoint, "
            "weight decay at the end: 0.3 here, 0.01 in the checkpoint",
            "optimizer: the configured values apply: betas (0.9, 0.9) (in the checkpoint: (0.9, 0.999))",
        )
        assert same
        assert {group["max_lr"] for group in used} == {4e-2}
        assert all(0.039 < group["lr"] < 0.04 for group in used)
        assert {group["weight_decay"] for group in used} == {0.3, 0.0}
        assert {tuple(group["betas"]) for group in used} == {(0.9, 0.9)}
        assert (state["max_lr"], state["num_steps"]) == (4e-2, 32)


def test_the_stored_values_apply_where_they_are_chosen(one_rank, tmp_path):
    changes = {"lr": 4e-2, "weight_decay": 0.3, "stored": True}
    [(notes, same, used, state)] = one_rank.run(schedule_work.resumed, {}, str(tmp_path), {}, changes)
    assert [note.split(":")[1] for note in notes] == [" the stored values apply"]
    assert same
    assert {group["max_lr"] for group in used} == {1e-2}
    assert all(group["lr"] == pytest.approx(AFTER_3_STEPS) for group in used)
    assert {group["weight_decay"] for group in used} == {0.01, 0.0}
    assert state["max_lr"] == 1e-2


@pytest.mark.parametrize(
    ("changes", "overrides", "expected"),
    [
        (
            {"lr": 4e-2},
            (None, None),
            "differs from the checkpoint's (optimizer.lr: 0.04 here, 0.01 in the checkpoint)",
        ),
        (
            {},
            ({"*embedding*": {"max_lr": 1e-3}}, {"*embedding*": {"max_lr": 2e-3}}),
            "a parameter group has another schedule (max_lr: 0.002 here, 0.001 in the checkpoint)",
        ),
    ],
    ids=["all", "one group"],
)
def test_without_a_choice_another_schedule_is_rejected(one_rank, tmp_path, changes, overrides, expected):
    [(kind, message, _)] = one_rank.run(
        rank_work.error_of, schedule_work.resumed, {}, str(tmp_path), {}, changes, overrides
    )
    assert (kind, expected in message) == ("CheckpointScheduleError", True), message
    assert "Set scheduler.override_opt_param_scheduler=true" in message


@pytest.mark.parametrize(
    "overrides",
    [
        ({"*embedding*": {"max_lr": 1e-3}}, {"*embedding*": {"max_lr": 2e-3}}),
        (
            {"*fc1*": {"max_lr": 1e-3}, "*fc2*": {"max_lr": 2e-3}},
            {"*fc1*": {"max_lr": 4e-3}, "*fc2*": {"max_lr": 3e-3}},
        ),
        ({}, {"*embedding*": {"max_lr": 2e-3}}),
        ({"*embedding*": {"max_lr": 2e-3}}, {}),
    ],
    ids=["changed", "in another order", "new", "removed"],
)
@pytest.mark.parametrize("shape", [{}, {"dist_opt": True, "bf16": True}], ids=["plain", "distributed"])
def test_overrides_of_single_parameter_groups_change(one_rank, tmp_path, shape, overrides):
    [(_, same, used, _)] = one_rank.run(
        schedule_work.resumed, shape, str(tmp_path), {}, {"override": True}, overrides
    )
    assert same
    assert {group["max_lr"] for group in used} == {1e-2, *(each["max_lr"] for each in overrides[1].values())}


def test_new_overrides_are_rejected_where_the_stored_schedule_is_chosen(one_rank, tmp_path):
    overrides = ({}, {"*embedding*": {"max_lr": 2e-3}})
    [(kind, message, _)] = one_rank.run(
        rank_work.error_of, schedule_work.resumed, {}, str(tmp_path), {}, {"stored": True}, overrides
    )
    assert (kind, "has no parameter group with" in message) == ("CheckpointLayoutError", True), message


@pytest.mark.parametrize(
    ("saved", "wanted", "warmup"),
    [
        ({"warmup": 22.937}, {"warmup": 22.937}, 22.937),
        ({"warmup": 23}, {"warmup": 22.937}, 23),
        ({"warmup": 23}, {"warmup": 22.937, "override": True}, 22.937),
    ],
    ids=["a fraction", "rounded by an earlier version", "rounded, and the configured one is chosen"],
)
def test_a_warm_up_of_a_fractional_number_of_sequences_is_resumed(one_rank, tmp_path, saved, wanted, warmup):
    [(notes, same, used, state)] = one_rank.run(schedule_work.resumed, {}, str(tmp_path), saved, wanted)
    assert (notes, same, state["lr_warmup_steps"]) == ((), True, warmup)
    assert used[0]["lr"] == pytest.approx(1e-2, rel=1e-3)


def test_another_warm_up_is_rejected(one_rank, tmp_path):
    [(kind, message, _)] = one_rank.run(
        rank_work.error_of, schedule_work.resumed, {}, str(tmp_path), {"warmup": 22}, {"warmup": 23.5}
    )
    assert (kind, "warm-up (sequences): 23.5 here, 22 in the checkpoint" in message) == (
        "CheckpointScheduleError",
        True,
    ), message
