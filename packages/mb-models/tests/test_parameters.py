import pytest

from mb_models import GPTModelConfig, parameter_count
from mb_models.parameters import expert_layers

LLAMA = {
    "normalization": "RMSNorm",
    "gated_linear_unit": True,
    "activation_func": "silu",
    "add_bias_linear": False,
    "position_embedding_type": "rope",
}


def test_published_sizes():
    """Sizes that the models' authors published: GPT-2 small, Llama 3.1 8B, Llama 3.1 70B, Mixtral 8x7B."""
    gpt2 = GPTModelConfig(
        num_layers=12,
        hidden_size=768,
        num_attention_heads=12,
        vocab_size=50257,
        share_embeddings_and_output_weights=True,
    )
    llama_8b = GPTModelConfig(
        num_layers=32,
        hidden_size=4096,
        ffn_hidden_size=14336,
        num_attention_heads=32,
        num_query_groups=8,
        vocab_size=128256,
        **LLAMA,
    )
    llama_70b = GPTModelConfig(
        num_layers=80,
        hidden_size=8192,
        ffn_hidden_size=28672,
        num_attention_heads=64,
        num_query_groups=8,
        vocab_size=128256,
        **LLAMA,
    )
    mixtral = GPTModelConfig(
        num_layers=32,
        hidden_size=4096,
        ffn_hidden_size=14336,
        num_attention_heads=32,
        num_query_groups=8,
        vocab_size=32000,
        num_moe_experts=8,
        **LLAMA,
    )
    assert [parameter_count(config) for config in (gpt2, llama_8b, llama_70b, mixtral)] == [
        124_439_808,
        8_030_261_248,
        70_553_706_496,
        46_702_792_704,
    ]


def small(**settings):
    return GPTModelConfig(num_layers=4, hidden_size=64, num_attention_heads=4, **settings)


def test_experts_are_in_the_layers_of_the_frequency():
    layouts = [
        expert_layers(small()),
        expert_layers(small(num_moe_experts=2)),
        expert_layers(small(num_moe_experts=2, moe_layer_freq=2)),
        expert_layers(small(num_moe_experts=2, moe_layer_freq=[0, 1, 1, 0])),
    ]
    assert layouts == [
        [False, False, False, False],
        [True, True, True, True],
        [True, False, True, False],
        [False, True, True, False],
    ]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "vocab_size: not set"),
        ({"vocab_size": 8, "num_moe_experts": 2, "moe_layer_freq": [1]}, "lists 1 layers of 4"),
        (
            {"vocab_size": 8, "num_moe_experts": 2, "moe_layer_freq": 0},
            "moe_layer_freq: is 0, because every n-th",
        ),
    ],
)
def test_uncounted_fields_are_rejected(settings, message):
    with pytest.raises(ValueError, match=message):
        parameter_count(small(**settings))
