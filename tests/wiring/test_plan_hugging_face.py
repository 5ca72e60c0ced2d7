"""A config.json is planned with the parameters of the model that transformers builds from it."""

from typing import Any

import pytest
import torch

from mb_plan import make_plan
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
        "moe_intermediate_size": 32,
        "moe_shared_expert_intermediate_size": 48,
    },
    "qwen2_moe": {**EXPERTS, "num_experts": 4, "shared_expert_intermediate_size": 48},
    "qwen3_moe": {**EXPERTS, "num_experts": 4, "mlp_only_layers": [1]},
}


@pytest.mark.parametrize("kind", sorted(FAMILIES))
def test_parameters_are_those_of_the_model_that_transformers_builds(kind: str) -> None:
    sizes = (
        {"n_embd": 64, "n_head": 4, "n_layer": 3, "n_positions": 64, "vocab_size": 128}
        if kind == "gpt2"
        else SIZES
    )
    config = transformers.AutoConfig.for_model(kind, **{**sizes, **FURTHER.get(kind, {})})
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    expected = sum(parameter.numel() for parameter in model.parameters())
    assert make_plan({"model": fields_of_config(config.to_dict())}).parameters == expected
