"""Tiny random models of transformers, one for each family and for each option that changes the computation."""

import torch
from hf_ranks import SMALL

from mb_models.hf.hybrid_families import UNLIMITED_STEP

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16}
SCALED_YARN = {**YARN, "mscale": 0.7, "mscale_all_dim": 0.9, "beta_fast": 16.0, "beta_slow": 2.0}
QWEN_EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
DEEPSEEK = {
    "num_hidden_layers": 3,
    "num_key_value_heads": 4,
    "q_lora_rank": 20,
    "kv_lora_rank": 12,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 6,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 24,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 2.5,
}
GROUPS = {"n_group": 4, "topk_group": 2}
UNGROUPED = {"n_group": 1, "topk_group": 1}
GLM4_MOE = {
    "head_dim": 8,
    "n_routed_experts": 8,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 24,
    "routed_scaling_factor": 2.5,
}
GPT_OSS = {"head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 6}
MAMBA2 = {"num_heads": 8, "head_dim": 8, "n_groups": 2, "state_size": 16}
GEMMA2 = {"num_hidden_layers": 4, "head_dim": 16, "sliding_window": 6, "query_pre_attn_scalar": 24}
CAPS = {"attn_logit_softcapping": 0.3, "final_logit_softcapping": 0.5}
"""Caps that the small scores and logits of random models come close to."""
GEMMA3_ROTARY = {
    "full_attention": {"rope_type": "linear", "rope_theta": 50000.0, "factor": 8.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
}
OLMO3_ROTARY = {
    "full_attention": {**SCALED_YARN, "rope_theta": 500.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
}
NEMOTRON_H = {
    "layers_block_type": ["linear_attention", "mlp", "full_attention", "linear_attention"],
    "mamba_num_heads": 8,
    "mamba_head_dim": 8,
    "n_groups": 2,
    "ssm_state_size": 16,
    "head_dim": 8,
    "time_step_min": UNLIMITED_STEP,
}
KINDS = {
    "llama": ("Llama", {}),
    "llama-tied-llama3": ("Llama", {"tie_word_embeddings": True, "rope_parameters": LLAMA3}),
    "llama-linear": ("Llama", {"rope_parameters": LINEAR}),
    "llama-biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "mistral-window": ("Mistral", {"sliding_window": 5, "head_dim": 12}),
    "qwen2": ("Qwen2", {}),
    "qwen2-windows": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1},
    ),
    "qwen2-yarn": ("Qwen2", {"rope_parameters": YARN}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "qwen3-yarn": ("Qwen3", {"head_dim": 16, "rope_parameters": SCALED_YARN | {"truncate": False}}),
    "mixtral": ("Mixtral", {"num_local_experts": 4}),
    "mixtral-window": ("Mixtral", {"num_local_experts": 4, "sliding_window": 7}),
    "qwen2-moe": (
        "Qwen2Moe",
        {**QWEN_EXPERTS, "shared_expert_intermediate_size": 40, "mlp_only_layers": [1]},
    ),
    "qwen3-moe": ("Qwen3Moe", {**QWEN_EXPERTS, "head_dim": 16, "norm_topk_prob": True}),
    "qwen3-moe-sparse": ("Qwen3Moe", {**QWEN_EXPERTS, "head_dim": 8, "decoder_sparse_step": 2}),
    "deepseek-v2": ("DeepseekV2", DEEPSEEK),
    "deepseek-v2-groups": (
        "DeepseekV2",
        {
            **DEEPSEEK,
            **GROUPS,
            "topk_method": "group_limited_greedy",
            "num_experts_per_tok": 2,
            "rope_parameters": SCALED_YARN,
        },
    ),
    "deepseek-v2-lite": ("DeepseekV2", {**DEEPSEEK, "q_lora_rank": None}),
    "deepseek-v3": ("DeepseekV3", {**DEEPSEEK, **GROUPS}),
    "moonlight": ("DeepseekV3", {**DEEPSEEK, "q_lora_rank": None, "n_group": 1, "topk_group": 1}),
    "deepseek-v3-top1": (
        "DeepseekV3",
        DEEPSEEK | UNGROUPED | {"num_experts_per_tok": 1, "norm_topk_prob": False},
    ),
    "deepseek-v3-yarn": ("DeepseekV3", {**DEEPSEEK, "n_group": 1, "topk_group": 1, "rope_parameters": YARN}),
    "gpt-oss": ("GptOss", GPT_OSS),
    "gpt-oss-no-window": ("GptOss", GPT_OSS | {"layer_types": ["full_attention"] * 2}),
    "glm4-moe": ("Glm4Moe", GLM4_MOE | {"use_qk_norm": True, "attention_bias": True}),
    "glm4-moe-groups": ("Glm4Moe", GLM4_MOE | GROUPS | {"first_k_dense_replace": 0}),
    "glm4-moe-yarn": (
        "Glm4Moe",
        GLM4_MOE | {"rope_parameters": SCALED_YARN | {"partial_rotary_factor": 0.5}},
    ),
    "gemma": ("Gemma", {"head_dim": 16, "num_key_value_heads": 1}),
    "gemma2": ("Gemma2", GEMMA2 | CAPS),
    "gemma2-no-caps": ("Gemma2", GEMMA2 | dict.fromkeys(CAPS)),
    "gemma2-no-window": ("Gemma2", GEMMA2 | {"layer_types": ["full_attention"] * 4}),
    "gemma3": ("Gemma3", GEMMA2 | {"layer_types": None}),
    "gemma3-scaled": ("Gemma3", GEMMA2 | {"rope_parameters": GEMMA3_ROTARY, "sliding_window_pattern": 2}),
    "olmo2": ("Olmo2", {}),
    "olmo3": ("Olmo3", {"num_hidden_layers": 4, "sliding_window": 6}),
    "olmo3-yarn": ("Olmo3", {"num_hidden_layers": 4, "sliding_window": 6, "rope_parameters": OLMO3_ROTARY}),
    "olmoe": ("Olmoe", {"num_experts": 8, "num_experts_per_tok": 2}),
    "smollm3": (
        "SmolLM3",
        {"num_hidden_layers": 4, "pad_token_id": 0, "rope_parameters": {"rope_theta": 1000.0}},
    ),
    "smollm3-windows": (
        "SmolLM3",
        {"pad_token_id": 0, "no_rope_layers": [1, 0], "use_sliding_window": True, "sliding_window": 6},
    ),
    "exaone4": ("Exaone4", {"sliding_window": None, "layer_types": ["full_attention"] * 2}),
    "exaone4-windows": ("Exaone4", {"num_hidden_layers": 4, "sliding_window": 6}),
    "exaone4-no-rotation": ("Exaone4", {"sliding_window": 6, "layer_types": ["full_attention"] * 2}),
    "granite": (
        "Granite",
        {
            "embedding_multiplier": 12.0,
            "residual_multiplier": 0.22,
            "attention_multiplier": 0.11,
            "logits_scaling": 3.0,
        },
    ),
    "cohere": ("Cohere", {"eos_token_id": 1}),
    "cohere2": ("Cohere2", {"num_hidden_layers": 4, "sliding_window": 6, "eos_token_id": 1}),
    "gpt-neox": ("GPTNeoX", {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}),
    "gpt-neox-linear": ("GPTNeoX", {"rope_parameters": LINEAR}),
    "gpt-neox-yarn": ("GPTNeoX", {"rope_parameters": SCALED_YARN | {"partial_rotary_factor": 0.5}}),
    "gpt-neox-sequential": ("GPTNeoX", {"use_parallel_residual": False, "tie_word_embeddings": True}),
    "qwen3-next": (
        "Qwen3Next",
        {
            **QWEN_EXPERTS,
            "head_dim": 16,
            "layer_types": ["linear_attention", "full_attention"],
            "shared_expert_intermediate_size": 40,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 12,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
        },
    ),
    "mamba2": ("Mamba2", MAMBA2),
    "mamba2-tied": ("Mamba2", MAMBA2 | {"n_groups": 1, "tie_word_embeddings": True}),
    "nemotron-h": ("NemotronH", NEMOTRON_H),
    "nemotron-h-moe": (
        "NemotronH",
        NEMOTRON_H
        | {
            "layers_block_type": ["linear_attention", "moe", "full_attention", "moe"],
            "n_routed_experts": 8,
            "num_experts_per_tok": 2,
            "n_group": 4,
            "topk_group": 1,
            "moe_intermediate_size": 24,
            "moe_shared_expert_intermediate_size": 40,
            "routed_scaling_factor": 2.5,
        },
    ),
    "nemotron-h-top1": (
        "NemotronH",
        NEMOTRON_H
        | UNGROUPED
        | {
            "tie_word_embeddings": True,  # without effect in transformers
            "layers_block_type": ["linear_attention", "moe", "full_attention", "moe"],
            "n_routed_experts": 8,
            "num_experts_per_tok": 1,
            "norm_topk_prob": False,
            "moe_intermediate_size": 24,
            "moe_shared_expert_intermediate_size": 40,
        },
    ),
    "nemotron-h-latent": (
        "NemotronH",
        NEMOTRON_H
        | {
            "layers_block_type": ["linear_attention", "moe", "full_attention", "moe"],
            "n_routed_experts": 8,
            "moe_intermediate_size": 24,
            "moe_shared_expert_intermediate_size": 40,
            "moe_latent_size": 12,
        },
    ),
}
"""Name -> family of transformers, and its settings other than the sizes."""

EXPORTED = {
    "phi3": ("Phi3", {"pad_token_id": 0}),
    "phi3-partial-window": (
        "Phi3",
        {
            "pad_token_id": 0,
            "sliding_window": 9,
            "rope_parameters": {"rope_theta": 1e4, "rope_type": "default", "partial_rotary_factor": 0.5},
        },
    ),
    "mistral": ("Mistral", {"sliding_window": None}),
    "seed-oss": ("SeedOss", {"head_dim": 8}),
}
"""Models whose family an export must name, because an earlier one computes the same."""


def make(kind, folder, *, shard="1GB", dtype=torch.float32):
    """Save a random transformers model, and return it."""
    import transformers

    family, settings = (KINDS | EXPORTED)[kind]
    torch.manual_seed(5)
    name = "Gemma3Text" if family == "Gemma3" else family
    cls = getattr(transformers, f"{name}Config")
    sizes = {name: size for name, size in SMALL.items() if name in cls.__dataclass_fields__}
    config = cls(**{**sizes, **settings})
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    for parameter in model.parameters():  # norms and biases are constant: random values reveal mistakes
        parameter.data.add_(0.05 * torch.randn_like(parameter))
    for name, value in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            value.uniform_(-0.3, 0.3)
    model = model.to(dtype)
    model.save_pretrained(folder, max_shard_size=shard)
    return model


VISION = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
IMAGES = {"image_size": 28, "patch_size": 14}


def make_multimodal(folder):
    """Save a random Gemma 3 of images and text, and return it."""
    import transformers

    torch.manual_seed(5)
    config = transformers.Gemma3Config(
        text_config={**SMALL, "head_dim": 16, "sliding_window": 6},
        vision_config={**VISION, **IMAGES},
        mm_tokens_per_image=4,
    )
    model = transformers.Gemma3ForConditionalGeneration(config)
    model.eval().save_pretrained(folder)
    return model
