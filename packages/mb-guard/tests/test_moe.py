"""Faults of routers: each is there without its correction, and absent with it."""

import pytest

BALANCED = [
    {"moe_router_load_balancing_type": "aux_loss", "moe_aux_loss_coeff": 0.5},
    {"moe_router_load_balancing_type": "seq_aux_loss", "moe_aux_loss_coeff": 0.5},
    {"moe_router_load_balancing_type": "global_aux_loss", "moe_aux_loss_coeff": 0.5},
    {"moe_router_load_balancing_type": "none", "moe_z_loss_coeff": 0.05},
]
EXPERTS = {"num_moe_experts": 4, "moe_ffn_hidden_size": 24, "moe_token_dispatcher_type": "alltoall"}
IDS = ["aux", "seq", "global", "z"]


@pytest.mark.parametrize("settings", BALANCED, ids=IDS)
def test_balancing_does_not_depend_on_the_loss_mask(settings, run_case):
    [right] = run_case("case_moe.py", "under_masks", None, settings)
    [wrong] = run_case("case_moe.py", "under_masks", "balancing-under-loss-masks", settings)
    assert right == pytest.approx([1, 1, 1, 1], abs=1e-4)
    assert wrong == pytest.approx([1, 2, 4, 8], abs=1e-3)


@pytest.mark.parametrize(
    ("divisor", "settings", "rejected"),
    [
        (2, {**EXPERTS, **BALANCED[0]}, True),
        (2, {"mtp_num_layers": 1}, True),
        (2, EXPERTS, False),
        (32, {**EXPERTS, **BALANCED[0]}, False),
    ],
    ids=["balanced", "mtp", "not balanced", "tokens"],
)
def test_a_divisor_other_than_the_tokens_is_rejected_with_losses_of_the_model(
    divisor, settings, rejected, run_case
):
    [message] = run_case("case_moe.py", "own_divisor", divisor, settings)
    assert (
        message.startswith("loss function: has returned 2 tokens in a step of which the loss masks hold 32")
        is rejected
    )
    assert bool(message) is rejected


@pytest.mark.parametrize("settings", [BALANCED[1], BALANCED[3]], ids=["seq", "z"])
def test_padding_does_not_change_balancing(settings, run_case):
    assert run_case("case_moe.py", "padded", None, settings) == [pytest.approx(0, abs=1e-4)]


def test_padded_sequences_are_balanced_over_their_own_tokens(run_case):
    assert run_case("case_moe.py", "padded", "padding-mask-layout", BALANCED[1])[0] > 0.05


@pytest.mark.parametrize("per_token", [True, False])
def test_global_balancing_does_not_depend_on_replicas(per_token, run_case):
    assert run_case("case_moe.py", "over_replicas", None, per_token, ranks=2) == pytest.approx(
        [1, 1], abs=1e-4
    )
    wrong = run_case("case_moe.py", "over_replicas", "global-aux-loss-scale", per_token, ranks=2)
    assert wrong == pytest.approx([0.5, 0.5], abs=1e-4)


def test_expert_bias_counts_tokens_that_are_not_padding(run_case):
    from mb_host import RankFailedError

    [(counts, right)] = run_case("case_moe.py", "counted_padding", None)
    assert counts == right
    with pytest.raises(RankFailedError, match="size of tensor"):
        run_case("case_moe.py", "counted_padding", "expert-bias-padding")


def test_tokens_are_counted_exactly_in_bfloat16(run_case):
    [(counts, right)] = run_case("case_moe.py", "counted_in_half", None)
    assert counts == right
    [(rounded, right)] = run_case("case_moe.py", "counted_in_half", "expert-counts-in-bf16")
    assert rounded != right


def test_experts_of_a_hybrids_prediction_have_their_own_layer(run_case):
    assert run_case("case_moe.py", "hybrid_layers", None) == [[(True, 1)]]
    assert run_case("case_moe.py", "hybrid_layers", "hybrid-prediction-layers") == [[(False, 2)]]


@pytest.mark.parametrize("to_capacity", [False, True])
@pytest.mark.parametrize(("policy", "first"), [("position", [1, 3]), ("probs", [3, 7])])
def test_padding_takes_no_capacity(policy, first, to_capacity, run_case):
    assert run_case("case_moe.py", "kept", None, policy, to_capacity) == [[first, [], [], []]]
    [wrong] = run_case("case_moe.py", "kept", "padding-takes-capacity", policy, to_capacity)
    assert 0 in wrong[0]


def test_the_last_tokens_are_dropped(run_case):
    [(kept, right)] = run_case("case_moe.py", "dropped_last", None)
    assert kept == right
    [(kept, right)] = run_case("case_moe.py", "dropped_last", "tokens-dropped-at-random")
    assert kept != right


def test_routers_have_no_noise_in_evaluation(run_case):
    assert run_case("case_moe.py", "jittered", None) == [(True, False)]
    assert run_case("case_moe.py", "jittered", "jitter-in-evaluation") == [(True, True)]


def test_a_padding_mask_of_another_length_is_rejected(run_case):
    from mb_host import RankFailedError

    with pytest.raises(RankFailedError, match=r"padding_mask: has 14 tokens on this rank, .* have 16. Pass"):
        run_case("case_moe.py", "wrong_length")


def test_padding_of_experts_ends_with_the_tokens(run_case):
    assert run_case("case_moe.py", "padded_counts", 128, 90, 128) == [128]
    assert run_case("case_moe.py", "padded_counts", 100, 90, 128) == [100], (
        "128, the multiple: delete the record"
    )


@pytest.mark.parametrize("grouped", [False, True])
def test_experts_of_all_ranks_are_different(grouped, run_case):
    right = run_case("case_moe.py", "drawn", None, grouped, ranks=2)
    assert right == [[0, 0, 0, 0, 1]] * 2  # what is drawn behind the experts is the same on all ranks
    wrong = run_case("case_moe.py", "drawn", "equal-experts-on-all-ranks", grouped, ranks=2)
    assert wrong == [[1, 1, 1, 1, 1]] * 2
