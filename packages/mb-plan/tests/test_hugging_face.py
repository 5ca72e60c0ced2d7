"""Models in a config.json: their parameters are the published numbers."""

import json
from pathlib import Path

import pytest

from mb_plan import make_plan
from mb_plan.errors import ModelFileError
from mb_plan.shape.hugging_face import fields_of_config
from mb_plan.shape.sources import model_of_sizes, read_model

LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
    "num_key_value_heads": 8, "num_hidden_layers": 32, "vocab_size": 128256, "tie_word_embeddings": False,
}  # fmt: skip
NEMOTRON_H = {
    "model_type": "nemotron_h",
    "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
    "num_hidden_layers": 52,
    "hidden_size": 4096,
    "intermediate_size": 21_504,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "mamba_num_heads": 128,
    "mamba_head_dim": 64,
    "ssm_state_size": 128,
    "n_groups": 8,
    "vocab_size": 131_072,
}
NEMOTRON_3_NANO = {
    **NEMOTRON_H,
    "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
    "hidden_size": 2688,
    "intermediate_size": 1856,
    "num_key_value_heads": 2,
    "mamba_num_heads": 64,
    "n_routed_experts": 128,
    "num_experts_per_tok": 6,
    "moe_intermediate_size": 1856,
    "n_shared_experts": 1,
    "moe_shared_expert_intermediate_size": 3712,
}
PUBLISHED = {
    "Llama 3.1 8B": (LLAMA, 8_030_261_248),
    "Llama 3.1 70B": (
        {
            **LLAMA,
            "hidden_size": 8192,
            "intermediate_size": 28672,
            "num_attention_heads": 64,
            "num_hidden_layers": 80,
        },
        70_553_706_496,
    ),
    "Llama 3.1 405B": (
        {
            **LLAMA,
            "hidden_size": 16384,
            "intermediate_size": 53248,
            "num_attention_heads": 128,
            "num_hidden_layers": 126,
        },
        405_853_388_800,
    ),
    "Mistral 7B v0.1": (
        {**LLAMA, "model_type": "mistral", "vocab_size": 32000, "sliding_window": 4096},
        7_241_732_096,
    ),
    "Mixtral 8x7B": (
        {
            **LLAMA,
            "model_type": "mixtral",
            "vocab_size": 32000,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
        },
        46_702_792_704,
    ),
    "Qwen2.5 7B": (
        {
            "model_type": "qwen2",
            "hidden_size": 3584,
            "intermediate_size": 18944,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
            "num_hidden_layers": 28,
            "vocab_size": 152064,
            "tie_word_embeddings": False,
        },
        7_615_616_512,
    ),
    "Qwen3 8B": (
        {
            "model_type": "qwen3",
            "hidden_size": 4096,
            "intermediate_size": 12288,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "num_hidden_layers": 36,
            "vocab_size": 151936,
            "tie_word_embeddings": False,
        },
        8_190_735_360,
    ),
    "Qwen3 30B-A3B": (
        {
            "model_type": "qwen3_moe",
            "hidden_size": 2048,
            "intermediate_size": 6144,
            "num_attention_heads": 32,
            "num_key_value_heads": 4,
            "head_dim": 128,
            "num_hidden_layers": 48,
            "vocab_size": 151936,
            "tie_word_embeddings": False,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 768,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        },
        30_532_122_624,
    ),
    "GPT-2": (
        {
            "model_type": "gpt2",
            "n_embd": 768,
            "n_head": 12,
            "n_layer": 12,
            "n_positions": 1024,
            "vocab_size": 50257,
        },
        124_439_808,
    ),
    "gpt-oss 120B": (
        {
            "model_type": "gpt_oss",
            "hidden_size": 2880,
            "intermediate_size": 2880,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "num_hidden_layers": 36,
            "vocab_size": 201088,
            "num_local_experts": 128,
            "num_experts_per_tok": 4,
            "sliding_window": 128,
            "tie_word_embeddings": False,
        },
        116_829_156_672,
    ),
    "Gemma 2 9B": (
        {
            "model_type": "gemma2",
            "hidden_size": 3584,
            "intermediate_size": 14336,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 256,
            "num_hidden_layers": 42,
            "vocab_size": 256000,
            "sliding_window": 4096,
        },
        9_241_705_984,
    ),
    "OLMo 2 7B": (
        {
            "model_type": "olmo2",
            "hidden_size": 4096,
            "intermediate_size": 11008,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "num_hidden_layers": 32,
            "vocab_size": 100352,
            "tie_word_embeddings": False,
        },
        7_298_617_344,
    ),
    "Nemotron-H 8B": (NEMOTRON_H, 8_100_852_736),
    "Nemotron 3 Nano 30B-A3B": (NEMOTRON_3_NANO, 31_577_937_344),
}
"""Name to what its config.json has of sizes, and the parameters that its page on Hugging Face reports; of the
hybrids those of the model that transformers 5.24 builds."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_those_that_were_published(name):
    config, parameters = PUBLISHED[name]
    assert make_plan({"model": fields_of_config(config)}).parameters == parameters


def test_the_table_of_the_documentation_has_them():
    page = (Path(__file__).parents[3] / "meta" / "docs" / "packages" / "mb-plan.md").read_text()
    assert all(f"| {name} | {parameters:,} |" in page for name, (_, parameters) in PUBLISHED.items())


def test_experts_behind_projections_are_counted():
    """Nemotron 3 Super is a model of 120B, of which 12B are active: NVIDIA-Nemotron-3-Super-120B-A12B."""
    runs = Path(__file__).parents[1] / "benchmarks" / "published_runs.json"
    model = json.loads(runs.read_text())["models"]["Nemotron_3_Super"]
    pattern = model["hybrid_layer_pattern"].partition("/")[0]  # without multi-token prediction
    model["hybrid_layer_pattern"] = pattern
    plan = make_plan({"model": {"add_bias_linear": False, "position_embedding_type": "none", **model}})
    assert (int(plan.parameters / 1e9), int(plan.active_parameters / 1e9)) == (120, 12)


def test_projections_to_the_experts_and_back_are_on_every_rank():
    """Megatron's MoELayer: two linear layers, hidden to latent and back, with biases, in mode "duplicated"."""
    sizes = {
        "num_layers": 1,
        "hidden_size": 8,
        "num_attention_heads": 2,
        "vocab_size": 64,
        "num_moe_experts": 4,
    }
    model = {**sizes, "position_embedding_type": "rope", "moe_ffn_hidden_size": 6, "moe_latent_size": 4}
    one, two = (
        make_plan({"model": {**model, "tensor_model_parallel_size": tp, "expert_tensor_parallel_size": 1}})
        for tp in (1, 2)
    )
    experts = 4 * (4 * 6 + 6 + 6 * 4 + 4)
    assert one.parts["experts"] == two.parts["experts"] == experts + 2 * 8 * 4 + 8 + 4


def test_deepseek_v3_has_the_parameters_of_its_report():
    """671B, of which 37B are active. Source: DeepSeek-AI, "DeepSeek-V3 Technical Report" (2024)."""
    config = {
        "model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432, "num_attention_heads": 128,
        "num_key_value_heads": 128, "num_hidden_layers": 61, "vocab_size": 129280, "q_lora_rank": 1536,
        "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8, "moe_intermediate_size": 2048,
        "first_k_dense_replace": 3, "moe_layer_freq": 1,
    }  # fmt: skip
    plan = make_plan({"model": fields_of_config(config)})
    assert (int(plan.parameters / 1e9), int(plan.active_parameters / 1e9)) == (671, 37)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({**LLAMA, "model_type": "mamba"}, "models of type 'mamba' are not known; known are deepseek_v2"),
        ({"architectures": ["X"]}, "models of type None are not known"),
        ({**LLAMA, "hidden_size": None}, "hidden_size is None, and must be a positive integer"),
        (
            {**LLAMA, "attention_bias": True},
            "attention_bias is True, and a model of type 'llama' is only counted with",
        ),
        ({**LLAMA, "model_type": "gemma2", "attention_bias": True}, "attention_bias is True"),
        ({**LLAMA, "model_type": "gpt_oss", "attention_bias": False}, "attention_bias is False"),
        ({**LLAMA, "model_type": "deepseek_v3", "moe_layer_freq": 2}, "moe_layer_freq is 2"),
        ({**LLAMA, "model_type": "qwen2_moe", "qkv_bias": False}, "qkv_bias is False"),
        ({**LLAMA, "model_type": "qwen3_moe", "use_sliding_window": True}, "use_sliding_window is True"),
        ({**NEMOTRON_H, "conv_kernel": 3}, "conv_kernel is 3"),
    ],
)
def test_what_is_not_known_is_refused(config, message):
    with pytest.raises(ModelFileError, match=message):
        fields_of_config(config)


def test_windows_are_those_of_the_layers():
    layers = ["full_attention", "sliding_attention"] * 16
    for found in (
        fields_of_config({**LLAMA, "model_type": "gemma2", "sliding_window": 8, "layer_types": layers}),
        fields_of_config({**LLAMA, "model_type": "mistral", "sliding_window": 8}),
    ):
        assert found["window_size"] == (7, 0)
    assert "window_size" not in fields_of_config({**LLAMA, "model_type": "mistral", "sliding_window": None})


def test_files_have_one_of_three_forms(tmp_path):
    pytest.importorskip("yaml", reason="needs mb-plan[cli]")
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    fields = {"num_layers": 2, "hidden_size": 8}
    for name, text in (
        ("run.yaml", "model: {num_layers: 2, hidden_size: 8}"),
        ("m.yaml", "{num_layers: 2, hidden_size: 8}"),
    ):
        (tmp_path / name).write_text(text)
        assert read_model(tmp_path / name) == fields
    assert read_model(tmp_path) == read_model(tmp_path / "config.json") == fields_of_config(LLAMA)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", "{", "is not JSON"),
        ("a.json", "[1]", "has no settings at its top level"),
        ("a.json", "{}", "has neither a model_type"),
        ("a.yaml", "train: {}", "has neither a model_type"),
        ("a.yaml", "- 1", "is no YAML file of settings"),
    ],
)
def test_other_files_are_refused(tmp_path, name, text, message):
    pytest.importorskip("yaml", reason="needs mb-plan[cli]")
    (tmp_path / name).write_text(text)
    with pytest.raises(ModelFileError, match=message):
        read_model(tmp_path / name)


def test_a_model_by_its_sizes_has_the_parts_of_llama():
    sizes = model_of_sizes(layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=128256)
    assert make_plan({"model": sizes}).parameters == PUBLISHED["Llama 3.1 8B"][1]


def test_a_hybrid_needs_the_pattern_of_its_layers():
    config = {name: value for name, value in NEMOTRON_H.items() if name != "hybrid_override_pattern"}
    with pytest.raises(
        ModelFileError, match="hybrid_override_pattern is None, layers_block_type is None, and one"
    ):
        fields_of_config(config)


def test_a_nemotron_h_is_never_tied():
    """transformers gives its output layer weights of its own (`_tied_weights_keys` of NemotronHForCausalLM is {})."""
    assert fields_of_config({**NEMOTRON_H, "tie_word_embeddings": True}) == fields_of_config(NEMOTRON_H)


def test_five_of_six_layers_of_a_gemma_3_have_a_window():
    config = {**PUBLISHED["Gemma 2 9B"][0], "model_type": "gemma3_text", "sliding_window_pattern": 6}
    assert fields_of_config(config)["window_attn_skip_freq"] == [1, 1, 1, 1, 1, 0] * 7


def test_a_file_is_named_by_its_path_or_by_text(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    assert read_model(str(path)) == read_model(path) == fields_of_config(LLAMA)


def test_a_run_whose_tokenizer_has_the_vocabulary_is_read(tmp_path):
    """So is what `mb-config import-args` writes of a Megatron-LM command line with --vocab-size."""
    pytest.importorskip("yaml")
    path = tmp_path / "run.yaml"
    path.write_text("model: {num_layers: 2, hidden_size: 64}\ntokenizer: {vocab_size: 512}\n")
    assert read_model(path) == {"num_layers": 2, "hidden_size": 64, "vocab_size": 512}
