"""The host's norm, attention and specs, beside Megatron's own."""

from pathlib import Path

import pytest

from mb_host import RankFailedError, function_in

ATTENTION = Path(__file__).parent / "host_attention.py"
pytestmark = pytest.mark.usefixtures("megatron")


@pytest.mark.parametrize(
    ("masked", "changes"),
    [
        (False, {}),
        (True, {}),
        (False, {"window_size": (4, 0)}),
        (False, {"apply_query_key_layer_scaling": True, "attention_softmax_in_fp32": True}),
        (False, {"softmax_scale": 0.5}),
    ],
    ids=["causal", "masked", "window", "layer-scaling", "scale"],
)
def test_attention_is_megatrons(masked, changes, one_rank):
    [difference] = one_rank.run(function_in(ATTENTION, "largest_difference"), masked, changes)
    assert difference < 1e-12


def test_a_window_holds_beside_a_mask(one_rank):
    [difference] = one_rank.run(function_in(ATTENTION, "largest_difference_in_a_masked_window"))
    assert difference < 1e-12


def test_sequences_in_a_pack_attend_to_themselves_alone(one_rank):
    [difference] = one_rank.run(function_in(ATTENTION, "packed_and_apart"))
    assert difference < 1e-12


def test_packs_under_context_parallelism_are_refused(two_ranks):
    with pytest.raises(RankFailedError, match=r"ValueError: .*are given with context parallelism"):
        two_ranks.run(function_in(ATTENTION, "packed_under_context_parallelism"))


def test_dropout_differs_between_ranks_and_leaves_the_host_alone(two_ranks):
    first, second = two_ranks.run(function_in(ATTENTION, "dropped"))
    assert first.pop("sum") != second.pop("sum")
    assert first == second == dict.fromkeys(first, True)


def test_norms_are_torchs_and_marked(one_rank):
    [answer] = one_rank.run(function_in(ATTENTION, "norms"))
    assert answer == ["LayerNorm", "RMSNorm", [True], 1e-6]


def test_specs_hold_the_hosts_parts(one_rank):
    [parts] = one_rank.run(function_in(ATTENTION, "parts_of_specs"))
    assert parts == {
        "layers of a stage": ["MLP", "MoELayer"],
        "final norm": "HostNorm",
        "norms": ["HostNorm", "HostNorm"],
        "query and key norms": ["HostNorm", "HostNorm"],
        "attention": "HostCoreAttention",
        "attention with sinks": "DotProductAttention",
    }


def test_norms_are_stored_as_under_transformer_engine(one_rank):
    dense = {"pre_mlp_layernorm.": "mlp.linear_fc1.layer_norm_"}
    plain = {"input_layernorm.": "self_attention.linear_qkv.layer_norm_"}
    latent = {
        f"self_attention.{part}_layernorm.": f"self_attention.linear_{part}_up_proj.layer_norm_"
        for part in ("q", "kv")
    }
    [names] = one_rank.run(function_in(ATTENTION, "stored_names_of_norms"))
    assert names == {
        "plain": [plain | dense, plain],
        "latent": [dense, {}],
        "latent, normalised": [dense | latent, latent],
    }


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("normalization", "model.normalization: the host has no L2Norm"),
        ("gamma", "model.layernorm_zero_centered_gamma: .*got True"),
        ("sinks", "model.softmax_type: .*got 'off-by-one'"),
        ("ignored", "model.qk_l2_norm: got True"),
        ("ignored in a block", "model.fused_residual_rmsnorm: got True"),
        ("bias", "attention_bias is given"),
        ("packed", "packed_seq_params are given with an attention_mask"),
    ],
)
def test_what_the_host_cannot_do_is_refused(what, message, one_rank):
    with pytest.raises(RankFailedError, match=f"ValueError: .*{message}"):
        one_rank.run(function_in(ATTENTION, "refused"), what)


def test_a_mask_under_context_parallelism_is_refused(two_ranks):
    with pytest.raises(RankFailedError, match=r"ValueError: .*context parallelism of 2"):
        two_ranks.run(function_in(ATTENTION, "mask_under_context_parallelism"))
