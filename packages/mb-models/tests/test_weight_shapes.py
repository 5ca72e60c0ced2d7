"""Settings that determine the shapes of weights, compared with built models."""

import pytest
import torch

from mb_host.megatron.layers import host_block_spec
from mb_models import GPTModelConfig, GPTModelProvider
from mb_models.training.weight_shapes import SHAPE_FIELDS, fixed_by_weights

CHANGES = {
    "num_layers": 3,
    "hidden_size": 32,
    "num_query_groups": 4,
    "kv_channels": 8,
    "ffn_hidden_size": 64,
    "gated_linear_unit": False,
    "normalization": "LayerNorm",
    "add_bias_linear": True,
    "add_qkv_bias": True,
    "qk_layernorm": True,
    "num_moe_experts": 2,
    "mtp_num_layers": 1,
    "vocab_size": 300,
    "position_embedding_type": "learned_absolute",
    "share_embeddings_and_output_weights": True,
    "hidden_dropout": 0.5,
    "attention_dropout": 0.5,
    "init_method_std": 0.5,
    "seq_length": 16,
    "window_size": [4, 0],
    "rotary_base": 500,
    "rotary_percent": 0.5,
    "layernorm_epsilon": 1e-3,
    "calculate_per_token_loss": True,
    "fp32_residual_connection": True,
}


def shapes(groups, settings):
    [chunk] = GPTModelProvider(
        GPTModelConfig(**settings), layer_spec=host_block_spec, device=torch.device("cpu")
    ).provide_chunks(groups)
    return {name: value.shape for name, value in chunk.named_parameters()}


@pytest.mark.parametrize("name", CHANGES)
def test_settings_that_change_weight_shapes_are_fixed(tiny, groups, name):
    changed = shapes(groups, tiny) != shapes(groups, {**tiny, name: CHANGES[name]})
    assert changed == (name in SHAPE_FIELDS)


def test_paths_of_models_and_adapters():
    paths = [
        "model.hidden_size",
        "model._target_",
        "peft",
        "peft.dim",
        "peft.alpha",
        "optimizer.lr",
        "model.hidden_dropout",
    ]
    assert fixed_by_weights(paths) == ["model.hidden_size", "model._target_", "peft", "peft.dim"]


def test_nested_configs_and_adapters_count_too():
    changed = [
        "model.transformer.num_layers",
        "model.transformer.bf16",
        "peft",
        "peft.alpha",
        "peft.dim",
        "train.seed",
    ]
    assert fixed_by_weights(changed) == ["model.transformer.num_layers", "peft", "peft.dim"]
