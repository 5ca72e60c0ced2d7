"""Activations of hybrid models, encoder-decoder models and image encoders."""

import pytest

from mb_plan import make_plan

GPT = {
    "num_layers": 2,
    "hidden_size": 64,
    "ffn_hidden_size": 160,
    "num_attention_heads": 4,
    "num_query_groups": 2,
    "vocab_size": 512,
    "normalization": "RMSNorm",
    "gated_linear_unit": True,
    "add_bias_linear": False,
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    "bias_activation_fusion": True,
    "position_embedding_type": "rope",
    "bf16": True,
}
EXPERTS = {"num_moe_experts": 4, "moe_router_topk": 2, "moe_ffn_hidden_size": 96}
T, S = 2 * 32, 32


def saved(**model):
    """Return the activations of the only stage, for two sequences of 32 tokens."""
    return by_stage(**model)[0]


def by_stage(*, world_size=1, **model):
    sections = {
        "model": {**GPT, **model},
        "train": {"micro_batch_size": 2, "global_batch_size": 2},
        "dataset": {"seq_length": S},
        "optimizer": {"bf16": True},
    }
    return [stage.rank_bytes.activations for stage in make_plan(sections, world_size=world_size).stages]


def hybrid(pattern, **model):
    return saved(hybrid_layer_pattern=pattern, num_layers=len(pattern.split("/")[0]), **model)


def test_attention_and_mlp_of_a_hybrid_save_what_a_layer_of_a_gpt_does():
    assert hybrid("*-*-") == saved()


def test_experts_of_a_hybrid_save_what_those_of_a_gpt_do():
    assert hybrid("*E*E", **EXPERTS) == saved(**EXPERTS)


def test_a_mamba_layer_saves_the_tensors_of_its_kernel():
    sizes = {"mamba_num_heads": 8, "mamba_head_dim": 16, "mamba_num_groups": 2, "mamba_state_dim": 32}
    around = 2 * 64 * T * 2
    inner, states = 8 * 16, 2 * 2 * 32
    assert hybrid("MM", **sizes) - hybrid("M", **sizes) == around + (4 * inner + states + 8) * T * 2


def test_a_gated_delta_layer_saves_the_tensors_of_its_kernel():
    sizes = {
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 16,
        "linear_num_value_heads": 4,
        "linear_value_head_dim": 16,
    }
    keys, values = 2 * 16, 4 * 16
    kernel = (2 * (2 * keys + values) + 2 * keys + 3 * values) * T * 2 + (2 + 64) * 4 * T * 4
    assert hybrid("GG", **sizes) - hybrid("G", **sizes) == 2 * 64 * T * 2 + kernel


def test_recomputation_of_a_hybrid_saves_the_inputs_of_its_layers():
    full = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    assert hybrid("*-*-", **full) < hybrid("*-*-")
    assert hybrid("*-*-", recompute_granularity="selective", recompute_modules=["mlp"]) < hybrid("*-*-")


def test_further_tokens_of_a_hybrid_save_their_own_layers():
    assert hybrid("*-/*-") > hybrid("*-/*") > hybrid("*-")


@pytest.mark.parametrize("encoder_length", [32, 64])
def test_a_decoder_of_a_t5_saves_its_attention_to_the_encoder(encoder_length):
    sections = {
        "model": {**GPT, "num_layers": 1, "decoder_seq_length": 16},
        "train": {"micro_batch_size": 2, "global_batch_size": 2},
        "dataset": {"seq_length": encoder_length},
        "optimizer": {"bf16": True},
    }
    found = make_plan(sections, world_size=1).stages[0].rank_bytes.activations
    read, written = 2 * encoder_length, 2 * 16
    layer = 2 * (4 * 64 + 2 * 64 + 2 * 32 + 3 * 160) + 4 * 4
    crossed = 2 * 64 * written * 2 + 2 * 64 * written * 2 + 2 * 32 * read * 2 + 4 * 4 * written
    ends = 2 * 64 * written * 2 + 4 * 512 * written
    assert found == layer * (read + written) + crossed + ends


IMAGES = {
    "vision_num_layers": 2,
    "vision_hidden_size": 32,
    "vision_num_attention_heads": 2,
    "vision_ffn_hidden_size": 64,
    "image_size": 16,
    "patch_size": 4,
    "projection_hidden_size": 48,
}


def test_images_add_to_the_first_stage_or_are_a_stage_of_their_own():
    text = saved()
    together = saved(**IMAGES)
    patches = 2 * 16
    layer = patches * (2 * (4 * 32 + 4 * 32 + 2 * 64) + 4 * 2)
    assert (
        together - text == 2 * layer + 2 * 32 * patches * 2 + (32 + 2 * together_projection()) * patches * 2
    )
    apart = by_stage(world_size=2, language_rank_offset=1, **IMAGES)
    assert apart == [together - text, text]


def together_projection():
    """Return the inner width of the projection that the plan reads."""
    from mb_plan.shape.model_shape import read_shape

    return read_shape({**GPT, **IMAGES}).vision.projection
