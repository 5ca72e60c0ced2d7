"""Norm, attention and specs for the CPU, compared to Megatron's."""

from pathlib import Path

import pytest
import torch

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
def test_attention_equals_megatrons(masked, changes, one_rank):
    [difference] = one_rank.run(function_in(ATTENTION, "largest_difference"), masked, changes)
    assert difference < 1e-12


def test_a_window_restricts_a_mask(one_rank):
    [difference] = one_rank.run(function_in(ATTENTION, "largest_difference_in_a_masked_window"))
    assert difference < 1e-12


def test_a_window_restricts_attention_that_is_not_causal_on_both_sides(one_rank):
    [difference] = one_rank.run(function_in(ATTENTION, "largest_difference_in_a_window_of_both_sides"))
    assert difference < 1e-5


def test_packed_sequences_attend_only_to_themselves(one_rank):
    [difference] = one_rank.run(function_in(ATTENTION, "packed_and_separate"))
    assert difference < 1e-12


def test_packed_sequences_attend_only_to_themselves_under_context_parallelism(two_ranks):
    differences = two_ranks.run(function_in(ATTENTION, "packed_under_context_parallelism"))
    assert max(differences) < 1e-12


def test_dropout_differs_between_ranks_and_does_not_change_the_global_state(two_ranks):
    first, second = two_ranks.run(function_in(ATTENTION, "dropped"))
    assert first.pop("sum") != second.pop("sum")
    assert first == second == dict.fromkeys(first, True)


def test_norms_are_from_torch_and_marked(one_rank):
    [result] = one_rank.run(function_in(ATTENTION, "norms"))
    assert result == ["LayerNorm", "RMSNorm", [True], 1e-6]


@pytest.mark.parametrize("kind", ["LayerNorm", "RMSNorm"])
def test_zero_centred_norms_store_the_weight_minus_one(kind, one_rank):
    [result] = one_rank.run(function_in(ATTENTION, "zero_centred"), kind)
    assert result == [[0.0] * 8, True, torch.bfloat16]


def test_specs_contain_the_components_for_the_cpu(one_rank):
    [parts] = one_rank.run(function_in(ATTENTION, "parts_of_specs"))
    assert parts == {
        "layers of a stage": ["MLP", "MoELayer"],
        "final norm": "HostNorm",
        "norms": ["HostNorm", "HostNorm"],
        "query and key norms": ["HostNorm", "HostNorm"],
        "attention": "HostCoreAttention",
        "attention with sinks": "DotProductAttention",
    }


def test_norms_have_the_checkpoint_names_of_transformer_engine(one_rank):
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
    ("case", "message"),
    [
        ("normalization", "model.normalization: L2Norm is not available"),
        ("sinks", "model.softmax_type: .*got 'off-by-one'"),
        ("ignored", "model.qk_l2_norm: got True"),
        ("ignored in a block", "model.fused_residual_rmsnorm: got True"),
        ("bias", "attention_bias is not supported"),
        ("mask", "attention_mask is torch.int64, because True marks a masked position"),
        ("packed", "packed_seq_params are not supported with an attention_mask"),
    ],
)
def test_unsupported_options_are_rejected(case, message, one_rank):
    with pytest.raises(RankFailedError, match=f"ValueError: .*{message}"):
        one_rank.run(function_in(ATTENTION, "unsupported"), case)


def test_a_mask_under_context_parallelism_is_rejected(two_ranks):
    with pytest.raises(RankFailedError, match=r"ValueError: .*context parallelism of 2"):
        two_ranks.run(function_in(ATTENTION, "mask_under_context_parallelism"))
