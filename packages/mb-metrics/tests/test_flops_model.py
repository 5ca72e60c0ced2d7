import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mb_metrics import UnknownFlopsError, model_flops_per_token
from mb_schema.attention_masks import attended_positions

GPT = {"num_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "ffn_hidden_size": 160, "vocab_size": 96}
SEQ = 32
LINEAR = 6 * 4 * 64 * 64
LOGITS = 6 * 64 * 96


def parts(seq_length=SEQ, **model):
    return model_flops_per_token(GPT | model, seq_length=seq_length).parts


def test_an_object_with_the_fields_does_as_well_and_so_do_the_names_of_megatrons_arguments():
    class Args:
        num_layers, hidden_size, num_attention_heads, ffn_hidden_size, padded_vocab_size = 4, 64, 4, 160, 96
        swiglu, num_experts, group_query_attention, num_query_groups = True, None, False, 1

    assert model_flops_per_token(Args(), seq_length=SEQ).parts == parts(gated_linear_unit=True)


def test_defaults_are_megatrons():
    slim = {name: GPT[name] for name in ("num_layers", "hidden_size", "num_attention_heads")}
    assert model_flops_per_token(slim, seq_length=SEQ, vocab_size=96).parts == parts(
        ffn_hidden_size=256, kv_channels=16, num_query_groups=4
    )


def test_deepseeks_mixture_counts_the_chosen_and_the_shared_experts_from_its_second_layer_on():
    counted = parts(
        num_moe_experts=8,
        moe_router_topk=3,
        moe_ffn_hidden_size=40,
        moe_shared_expert_intermediate_size=48,
        moe_shared_expert_gate=True,
        moe_layer_freq=[0, 1, 1, 1],
        gated_linear_unit=True,
    )
    assert counted == {
        "attention_linear": 4 * LINEAR,
        "attention_core": 4 * 6 * SEQ * 64,
        "mlp": 6 * 64 * 160 * 3,
        "router": 3 * 6 * 64 * 8,
        "experts": 3 * 3 * 6 * 64 * 40 * 3,
        "shared_experts": 3 * 6 * (64 * 48 * 3 + 64),
        "logits": LOGITS,
    }


def test_every_second_layer_may_have_experts_and_they_may_work_in_a_narrower_space():
    counted = parts(num_moe_experts=8, moe_router_topk=2, moe_layer_freq=2, moe_latent_size=16)
    assert counted["mlp"] == 2 * 6 * 64 * 160 * 2
    assert counted["experts"] == 2 * 6 * (2 * 16 * 160 * 2 + 2 * 64 * 16)


def test_latent_attention_counts_low_rank_projections_and_heads_of_two_widths():
    counted = parts(
        multi_latent_attention=True,
        q_lora_rank=24,
        kv_lora_rank=20,
        qk_head_dim=16,
        qk_pos_emb_head_dim=8,
        v_head_dim=12,
    )
    query, value = 4 * 24, 4 * 12
    weights = 64 * 24 + 24 * query + 64 * (20 + 8) + 20 * 4 * (16 + 12) + value * 64
    assert counted["attention_linear"] == 4 * 6 * weights
    assert counted["attention_core"] == 4 * 6 * SEQ / 2 * (query + value)


def test_without_a_query_rank_latent_attention_projects_queries_at_once():
    sizes = {"kv_lora_rank": 20, "qk_head_dim": 16, "qk_pos_emb_head_dim": 8, "v_head_dim": 12}
    weights = 64 * 96 + 64 * 28 + 20 * 4 * 28 + 48 * 64
    assert parts(multi_latent_attention=True, **sizes)["attention_linear"] == 4 * 6 * weights


def test_an_output_gate_is_one_more_query_projection():
    assert parts(attention_output_gate=True)["attention_linear"] == 4 * 6 * 5 * 64 * 64


@settings(deadline=None, max_examples=40)
@given(
    length=st.integers(1, 40),
    left=st.integers(-1, 50),
    right=st.integers(-1, 50),
    causal=st.booleans(),
)
def test_the_positions_are_those_of_the_mask_with_its_diagonal_counted_half(length, left, right, causal):
    def allowed(query, key):
        beyond = causal and key > query
        return not beyond and (left < 0 or query - key <= left) and (right < 0 or key - query <= right)

    pairs = sum(allowed(query, key) for query in range(length) for key in range(length))
    # The area under the edge of a mask cuts through the cells of its diagonals; each cut cell is half in, half out.
    reach_left = length if left < 0 else min(left + 1, length)
    slack = reach_left / 2 if causal or right >= 0 else reach_left / 2 + length / 2
    counted = attended_positions({length: 1}, window=(left, right), causal=causal) * length
    assert abs(counted - pairs) <= max(slack, length)


@pytest.mark.parametrize(
    ("window", "causal", "pairs"),
    [
        (None, True, 32 * 32 / 2),
        (None, False, 32 * 32),
        ((7, 0), True, 8 * 32 - 8 * 8 / 2),
        ((7, 0), False, 8 * 32 - 8 * 8 / 2),
        ((100, 0), True, 32 * 32 / 2),
        ((-1, -1), False, 32 * 32),
    ],
)
def test_a_mask_counts_its_area(window, causal, pairs):
    assert attended_positions({32: 1}, window=window, causal=causal) * 32 == pairs


def test_packed_documents_count_the_sum_of_their_squares():
    packed, whole = parts([8, 24]), parts(32)
    assert packed["attention_core"] * 32 == 4 * 6 * 64 * (8**2 + 24**2)
    assert parts((8**2 + 24**2) / 32) == packed
    assert whole["attention_core"] > packed["attention_core"]
    assert packed | whole == whole


def test_a_mapping_has_the_number_of_sequences_of_each_length():
    window = {"window_size": (7, 0), "window_attn_skip_freq": 2}
    counted = parts({8: 3, 24: 0.5}, **window)
    assert counted == pytest.approx(parts([8] * 6 + [24], **window))
    full, slid = 3 * 8**2 / 2 + 24**2 / 4, 3 * 8**2 / 2 + (24 * 8 - 8**2 / 2) / 2
    assert counted["attention_core"] * (3 * 8 + 12) == pytest.approx(12 * 64 * 2 * (full + slid))


def test_a_sliding_window_may_skip_layers():
    full, slid = 4 * 6 * SEQ * 64, 4 * 12 * (8 * 32 - 32) / 32 * 64
    assert parts(window_size=(7, 0))["attention_core"] == slid
    assert parts(window_size=(7, 0), window_attn_skip_freq=4)["attention_core"] == 3 / 4 * slid + full / 4
    assert (
        parts(window_size=(7, 0), window_attn_skip_freq=[1, 0, 0, 0])["attention_core"]
        == slid / 4 + full * 3 / 4
    )


def test_linear_attention_takes_three_layers_of_four():
    counted = parts(
        experimental_attention_variant="gated_delta_net",
        linear_attention_freq=4,
        linear_key_head_dim=8,
        linear_value_head_dim=12,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_conv_kernel_dim=4,
    )
    keys, values = 16, 48
    per_layer = 64 * (2 * keys + 2 * values + 8) + 4 * (2 * keys + values) + 3 * 4 * 8 * 12 + values * 64
    assert counted["linear_attention"] == 3 * 6 * per_layer
    assert counted["attention_linear"] == LINEAR
    by_list = {"experimental_attention_variant": "gated_delta_net", "linear_attention_freq": [0, 1, 1, 0]}
    assert parts(**by_list)["attention_linear"] == 2 * LINEAR


def test_a_hybrid_is_the_sum_of_its_pattern():
    counted = parts(
        hybrid_layer_pattern="M*|M-E",
        num_moe_experts=4,
        mamba_num_heads=6,
        mamba_head_dim=8,
        mamba_state_dim=10,
        mamba_num_groups=2,
    )
    inner = 48
    assert counted == {
        "attention_linear": LINEAR,
        "attention_core": 6 * SEQ * 64,
        "mlp": 6 * 64 * 160 * 2,
        "router": 6 * 64 * 4,
        "experts": 2 * 6 * 64 * 160 * 2,
        "mamba": 2 * 6 * (64 * (2 * inner + 2 * 20 + 6) + 4 * (inner + 40) + 2 * inner * 10 + inner * 64),
        "logits": LOGITS,
    }


def test_multi_token_prediction_is_a_layer_a_projection_and_the_output_layer_for_each_depth():
    layer = LINEAR + 6 * SEQ * 64 + 6 * 64 * 160 * 2
    depth = layer + 6 * 2 * 64 * 64 + LOGITS
    assert parts(mtp_num_layers=2)["mtp"] == 2 * depth
    assert parts(hybrid_layer_pattern="*-/*-/*-")["mtp"] == 2 * depth


def test_windows_follow_the_numbers_that_megatron_gives_to_layers():
    """A hybrid counts all its layers; a depth of multi-token prediction begins again."""
    window = {"window_size": (7, 0), "window_attn_skip_freq": [1, 0, 0]}
    full, narrow = 6 * SEQ * 64, 12 * 64 * (8 * SEQ - 8**2 / 2) / SEQ
    assert parts(hybrid_layer_pattern="*-*", **window)["attention_core"] == narrow + full
    assert parts(hybrid_layer_pattern="-**", **window)["attention_core"] == 2 * full
    depth = LINEAR + 6 * 64 * 160 * 2 + 6 * 2 * 64 * 64 + LOGITS
    predicted = {"mtp_num_layers": 2, "num_layers": 3, **window}
    assert parts(**predicted)["mtp"] == 2 * depth + narrow + full
    assert parts(mtp_use_repeated_layer=True, **predicted)["mtp"] == 2 * depth + 2 * narrow
    assert parts(hybrid_layer_pattern="-/*-", **window)["mtp"] == depth + narrow


def test_a_t5_is_counted_per_token_of_its_encoder():
    counted = model_flops_per_token(
        GPT | {"encoder_num_layers": 2}, seq_length=32, decoder_seq_length=8
    ).parts
    square = 6 * 64 * 64
    encoder, cross_key_value = 2 * 4 * square, 4 * 2 * square
    decoder = 4 * (4 + 2) * square
    assert counted == {
        "attention_linear": encoder + cross_key_value + decoder / 4,
        "attention_core": 2 * 12 * 32 * 64 + 4 * (12 * 8 / 2 * 64 + 12 * 32 * 64) / 4,
        "mlp": (2 + 4 / 4) * 6 * 64 * 160 * 2,
        "logits": LOGITS / 4,
    }


@pytest.mark.parametrize(
    ("model", "seq_length", "message"),
    [
        ({"hidden_size": 0}, 32, "model.hidden_size: must be a positive integer"),
        ({"vocab_size": None}, 32, r"vocab_size=None"),
        ({"num_layers": True}, 32, "num_layers=True"),
        ({}, 0, "sequence lengths must be positive"),
        ({}, [], "sequence lengths must be positive"),
        ({"hybrid_layer_pattern": "M*D"}, 32, r"no formula for layers \['D'\]"),
        ({"experimental_attention_variant": "dsa"}, 32, "no formula for 'dsa'"),
        ({"num_moe_experts": 2, "moe_layer_freq": [1]}, 32, "no entry for layer 1"),
        (
            {"window_size": (7, 0), "window_attn_skip_freq": [1]},
            32,
            "model.window_attn_skip_freq: no entry for layer 1",
        ),
        ({"num_moe_experts": 2, "moe_layer_freq": "[1]*4"}, 32, "no entry for layer 0"),
    ],
)
def test_what_cannot_be_counted_is_reported(model, seq_length, message):
    with pytest.raises(UnknownFlopsError, match=message):
        parts(seq_length, **model)


def test_packed_sequences_of_a_t5_are_not_counted():
    with pytest.raises(UnknownFlopsError, match="decoder length of each sequence is unknown"):
        model_flops_per_token(GPT, seq_length=[8, 24], decoder_seq_length=8)
