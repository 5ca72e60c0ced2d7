"""A config.json is planned with the parameters of the model that transformers builds from it."""

from typing import Any

import pytest
import torch

from mb_plan import make_plan, read_shape
from mb_plan.shape.hugging_face import FAMILIES, fields_of_config

transformers = pytest.importorskip("transformers")

SIZES = {
    "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "num_hidden_layers": 3, "vocab_size": 128, "max_position_embeddings": 64, "pad_token_id": 0,
}  # fmt: skip
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
LATENT = {
    **EXPERTS, "num_key_value_heads": 4, "n_routed_experts": 8, "n_shared_experts": 2, "first_k_dense_replace": 1,
    "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 12, "n_group": 2, "topk_group": 1,
}  # fmt: skip
FURTHER: dict[str, dict[str, Any]] = {
    "deepseek_v2": {**LATENT, "q_lora_rank": None},
    "deepseek_v3": {**LATENT, "q_lora_rank": 24},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2, "attention_bias": True},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "nemotron_h": {
        "mamba_num_heads": 8,
        "mamba_head_dim": 16,
        "ssm_state_size": 16,
        "n_groups": 2,
        "n_routed_experts": 4,
        **EXPERTS,
        "moe_shared_expert_intermediate_size": 48,
    },
    "qwen2_moe": {**EXPERTS, "num_experts": 4, "shared_expert_intermediate_size": 48},
    "qwen3_moe": {**EXPERTS, "num_experts": 4, "mlp_only_layers": [1]},
}


def sizes_of(kind: str) -> dict[str, Any]:
    if kind == "gpt2":
        return {"n_embd": 64, "n_head": 4, "n_layer": 3, "n_positions": 64, "vocab_size": 128}
    return {**SIZES, **FURTHER.get(kind, {})}


@pytest.mark.parametrize("kind", sorted(FAMILIES))
def test_parameters_are_those_of_the_model_that_transformers_builds(kind: str) -> None:
    config = transformers.AutoConfig.for_model(kind, **sizes_of(kind))
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    expected = sum(parameter.numel() for parameter in model.parameters())
    with_defaults, without = config.to_dict(), {"model_type": kind, **sizes_of(kind)}
    if kind == "nemotron_h":  # a file has the layers
        without["layers_block_type"] = with_defaults["layers_block_type"]
    for content in (with_defaults, without):
        assert make_plan({"model": fields_of_config(content)}).parameters == expected


WINDOWS: list[tuple[str, dict[str, Any]]] = [
    ("mistral", {}),
    ("mixtral", {"sliding_window": 8}),
    ("phi3", {"sliding_window": 8}),
    ("qwen2", {"sliding_window": 8}),
    ("qwen2", {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 1}),
    ("qwen3", {"use_sliding_window": True, "max_window_layers": 2}),
    ("qwen3", {"use_sliding_window": True}),
    ("gemma2", {}),
    ("gemma3_text", {"num_hidden_layers": 7}),
    ("gemma3_text", {"sliding_window_pattern": 3, "sliding_window": 8}),
    ("gpt_oss", {}),
    ("gpt_oss", {"layer_types": ["full_attention", "full_attention", "sliding_attention"]}),
]


@pytest.mark.parametrize(("kind", "changes"), WINDOWS)
def test_windows_are_those_of_the_layers_that_transformers_builds(kind: str, changes: dict[str, Any]) -> None:
    content = {**sizes_of(kind), **changes}
    config = transformers.AutoConfig.for_model(kind, **content)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    layers = [layer.self_attn for layer in model.model.layers]
    # attention of the first three reads the configuration
    expected = [getattr(layer, "sliding_window", config.sliding_window) for layer in layers]
    for form in (config.to_dict(), {"model_type": kind, **content}):
        shape = read_shape(fields_of_config(form))
        width = None if shape.window is None else shape.window[0] + 1
        assert [width if shape.has_window(layer) else None for layer in range(len(layers))] == expected
