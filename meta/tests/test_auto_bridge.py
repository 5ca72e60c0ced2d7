"""Model sections from a config.json, and the parts of recipes, under Megatron-Bridge's names."""

import json
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest

from mb_config import Provenance
from mb_models import GPTModelConfig
from mb_models.errors import FixedValueError, HuggingFaceError, HuggingFaceFolderError
from mb_models.hf.config_json import config_of
from mb_models.hf.families import FAMILIES
from mb_models.hf.section_fields import differences
from mb_trainer.bridge import AutoBridge, providers
from mb_trainer.bridge.auto_bridge import ELSEWHERE
from mb_trainer.bridge.models import (
    Gemma3ModelProvider,
    GPTModelProvider,
    HybridModelProvider,
    T5ModelProvider,
)
from mb_trainer.bridge.models.olmoe import OlMoEModelProvider
from mb_trainer.bridge.providers import ELSEWHERE as MEMBERS
from mb_trainer.bridge.recipes.common import _peft_common, _pretrain_common, _sft_common
from mb_trainer.bridge.recipes.utils.dataset_utils import (
    default_gsm8k_config,
    default_openmathinstruct2_config,
    default_openmathinstruct2_thinking_config,
    default_peft_config,
    default_tulu3_config,
)
from mb_trainer.bridge.recipes.utils.determinism_utils import apply_determinism_overrides
from mb_trainer.bridge.training.flex_dispatcher_backend import apply_flex_dispatcher_backend
from mb_trainer.bridge.utils.cuda_graph import set_cuda_graph_modules
from mb_trainer.config import ConfigContainer, DoRA
from mb_trainer.registry import REGISTRY
from mb_trainer.run.completion import StepResult, apply, weights_of_model

LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}
SIZES = {"num_layers": 2, "hidden_size": 32, "num_attention_heads": 2}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    return tmp_path


def test_a_section_is_made_of_a_config_json(folder):
    section = AutoBridge.from_hf_pretrained(folder).to_megatron_provider(load_weights=False)
    assert isinstance(section, GPTModelProvider)
    assert (section.num_query_groups, section.seq_length, section.rotary_base) == (2, 512, 500000.0)
    assert (section.share_embeddings_and_output_weights, section.params_dtype, section.bf16) == (
        True,
        "bfloat16",
        True,
    )
    assert (section.calculate_per_token_loss, section.persist_layer_norm) == (False, True)
    assert AutoBridge(SimpleNamespace(to_dict=lambda: LLAMA)).config == LLAMA
    assert AutoBridge.from_hf_config(LLAMA).to_megatron_provider(load_weights=False).num_layers == 2
    assert "LlamaForCausalLM" in AutoBridge.list_supported_models()


def test_weights_are_those_that_a_run_starts_from(folder):
    bridge = AutoBridge.from_hf_pretrained(folder)
    with pytest.raises(HuggingFaceFolderError, match=r"has no \*.safetensors"):
        bridge.to_megatron_provider()
    (folder / "model.safetensors").touch()
    config = _pretrain_common()
    config.model = bridge.to_megatron_provider()
    weights = weights_of_model(config)
    assert weights.notes == [f"checkpoint.pretrained_checkpoint: {folder}, from AutoBridge (load_weights)"]
    apply(weights.changes, config, Provenance())
    assert config.checkpoint.pretrained_checkpoint == str(folder)
    assert weights_of_model(config) == StepResult()


def test_a_folder_without_weights_is_an_error(folder):
    with pytest.raises(HuggingFaceFolderError, match=r"has no \*.safetensors"):
        AutoBridge.from_hf_pretrained(folder).load_hf_weights(["chunk"])


def test_options_of_from_hf_pretrained_have_an_effect_or_are_an_error(folder):
    section = AutoBridge.from_hf_pretrained(folder, torch_dtype="torch.float16").to_megatron_provider(
        load_weights=False
    )
    assert (section.params_dtype, section.fp16, section.bf16) == ("float16", True, False)
    with pytest.raises(TypeError, match="has no option device_map"):
        AutoBridge.from_hf_pretrained(folder, device_map="cuda", cache_dir="/tmp")
    for options in ({"torch_dtype": "torch.float16"}, {"device_map": "cuda"}):
        with pytest.raises(ValueError, match=f"{next(iter(options))}: .* is not supported"):
            AutoBridge.import_ckpt(folder, folder / "out", **options)
    with pytest.raises(HuggingFaceFolderError, match=r"has no \*.safetensors. Pass the folder"):
        AutoBridge.import_ckpt(folder, folder / "out", trust_remote_code=True)


def test_a_member_that_is_missing_names_its_replacement(folder):
    bridge = AutoBridge.from_hf_pretrained(folder)
    for name, text in {**ELSEWHERE, "none": "0.6.2 has no such member either"}.items():
        with pytest.raises(AttributeError, match="not in this trainer") as caught:
            getattr(bridge, name)
        assert text in str(caught.value)
    assert not hasattr(bridge, "push_to_hub")


def test_a_checkpoint_is_exported_in_the_format_of_a_model(folder, tmp_path):
    assert (
        AutoBridge.from_auto_config(tmp_path, folder).config == AutoBridge.from_hf_pretrained(folder).config
    )
    with pytest.raises(HuggingFaceFolderError, match="none: does not exist"):
        AutoBridge.from_auto_config(tmp_path / "none", folder)


def test_what_cannot_be_converted_or_found_is_one_line(folder, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(HuggingFaceFolderError, match=r"acme/none: is no folder with a config.json") as caught:
        AutoBridge.from_hf_pretrained("acme/none")
    assert "\n" not in str(caught.value)
    with pytest.raises(HuggingFaceFolderError, match=r"because Cannot .*[^.]\. Pass a folder"):
        AutoBridge.from_hf_pretrained("a--b")
    assert not AutoBridge.can_handle("acme/none")
    assert AutoBridge.can_handle(folder)
    with pytest.raises(HuggingFaceError, match="model_type is 'bert'"):
        AutoBridge.from_hf_config({"model_type": "bert"})


def test_a_provider_has_the_defaults_of_megatron_bridge():
    hybrid = HybridModelProvider(hidden_size=32, hybrid_layer_pattern="M-M*")
    assert (hybrid.num_layers, hybrid.normalization, hybrid.add_bias_linear) == (4, "RMSNorm", False)
    section = GPTModelProvider(**SIZES, use_transformer_engine_full_layer_spec=False)
    assert section.share_embeddings_and_output_weights
    experts = OlMoEModelProvider()
    assert (experts.autocast_dtype, experts.params_dtype, experts.bf16) == ("bfloat16", "float32", False)
    with pytest.raises(FixedValueError, match=r"transformer_layer_spec: .* Pass code that changes the model"):
        GPTModelProvider(**SIZES, transformer_layer_spec=print)


def test_a_member_of_a_provider_that_is_missing_names_its_replacement():
    for section in (GPTModelProvider(**SIZES), HybridModelProvider(), T5ModelProvider(**SIZES)):
        for name, text in MEMBERS.items():
            with pytest.raises(AttributeError, match=f"{name}: not in this trainer") as caught:
                getattr(section, name)
            assert text in str(caught.value)
        with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
            section.nothing  # noqa: B018
        assert not hasattr(section, "provide")


def test_a_subclass_declares_further_fields_of_megatron():
    @dataclass
    class Small(GPTModelProvider):
        num_layers: int = 2
        hidden_size: int = 32
        num_attention_heads: int = 2
        moe_router_padding_for_fp8: bool = True

    assert Small().transformer == {"moe_router_padding_for_fp8": True}
    assert Small(moe_router_padding_for_fp8=False).transformer == {"moe_router_padding_for_fp8": False}


def test_the_layers_of_a_hybrid_are_counted_when_its_pattern_is_set():
    section = HybridModelProvider(hidden_size=32, num_attention_heads=2)
    counts = []
    for pattern in ("M*M-", "M*/M"):
        section.hybrid_layer_pattern = pattern
        counts.append(section.num_layers)
    section.num_layers = 7
    section.hybrid_layer_pattern = "MM"
    assert [*counts, section.num_layers] == [4, 2, 7]


def test_a_t5_takes_the_fields_of_megatron_bridge():
    section = T5ModelProvider(**SIZES, seq_length_dec=64, relative_attention_num_buckets=32)
    section.finalize()
    assert (section.decoder_seq_length, section.seq_length_dec) == (64, 64)
    section.seq_length_dec = 32
    assert section.decoder_seq_length == 32
    with pytest.raises(FixedValueError, match="a T5 has one pipeline stage"):
        T5ModelProvider(**SIZES, encoder_pipeline_model_parallel_size=1)


def test_packing_that_is_switched_off_is_not_overruled_by_its_specs():
    config = _sft_common()
    assert [each for each in config.check(world_size=1) if each.id == "D114"] == []
    config.dataset.enable_offline_packing = False
    [problem] = [each for each in config.check(world_size=1) if each.id == "D114"]
    assert problem.severity == "error"
    assert "is false with packed_sequence_specs" in str(problem)
    config.dataset.packed_sequence_specs = None
    config.dataset.enable_in_batch_packing = True
    assert config.dataset.pack_sequences_in_batch
    assert [each for each in config.check(world_size=1) if each.id == "D114"] == []


def test_a_recipe_on_the_common_parts_has_no_errors(folder, tmp_path):
    config = _pretrain_common()
    config.model = AutoBridge.from_hf_pretrained(folder).to_megatron_provider(load_weights=False)
    config.tokenizer.tokenizer_type, config.tokenizer.vocab_size = "NullTokenizer", 200
    config.dataset.seq_length = config.model.seq_length
    config.model.cuda_graph_scope, config.model.attention_backend = "full", None
    found = config.validate(world_size=1)
    assert [each for each in found if each.severity == "error" or each.id == "V144"] == []
    file = tmp_path / "run.yaml"
    config.to_yaml(file)
    again = ConfigContainer.from_yaml(file, targets={"GPTModelProvider": GPTModelProvider})
    assert again.model == config.model


def test_the_parts_of_recipes():
    tuned, adapted = _sft_common(), _peft_common()
    assert (tuned.optimizer.lr, tuned.peft, adapted.optimizer.lr, adapted.peft.dim) == (5e-6, None, 1e-4, 32)
    assert tuned.dataset.offline_packing_specs.packed_sequence_size == 2048
    assert tuned.dataset.options.prompt_template == "{input} {output}"
    assert default_gsm8k_config().hf_dataset.dataset_name == "gsm8k"
    assert default_tulu3_config().options.chat
    assert default_openmathinstruct2_config(enable_offline_packing=True).enable_offline_packing
    with pytest.raises(NotImplementedError, match="openmathinstruct2_thinking: is not supported"):
        default_openmathinstruct2_thinking_config()
    assert isinstance(default_peft_config("dora", dim=4), DoRA)
    assert default_peft_config("none") is None
    with pytest.raises(ValueError, match="peft_scheme: 'ia3' is unknown"):
        default_peft_config("ia3")
    adapted.model = GPTModelProvider(**SIZES, num_moe_experts=4)
    apply_determinism_overrides(adapted)
    apply_flex_dispatcher_backend(adapted.model, "deepep")
    set_cuda_graph_modules(adapted.model, "attn,moe")
    assert adapted.env_vars["NCCL_ALGO"] == "Ring"
    assert (adapted.model.moe_token_dispatcher_type, adapted.model.moe_flex_dispatcher_backend) == (
        "flex",
        "deepep",
    )
    assert adapted.model.cuda_graph_modules == ["attn", "moe"]


GEMMA3 = {
    "model_type": "gemma3_text",
    "architectures": ["Gemma3ForCausalLM"],
    "hidden_size": 1152,
    "head_dim": 256,
    "intermediate_size": 6912,
    "num_hidden_layers": 26,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "vocab_size": 262144,
    "max_position_embeddings": 32768,
    "query_pre_attn_scalar": 256,
    "sliding_window": 512,
    "rope_theta": 1e6,
    "rope_local_base_freq": 1e4,
    "sliding_window_pattern": 6,
    "torch_dtype": "bfloat16",
}


def test_the_provider_of_gemma_3_computes_what_its_weights_need():
    of_weights = AutoBridge.from_hf_config(GEMMA3).to_megatron_provider(load_weights=False)
    provider = Gemma3ModelProvider(
        num_layers=26,
        hidden_size=1152,
        num_attention_heads=4,
        num_query_groups=1,
        kv_channels=256,
        ffn_hidden_size=6912,
        window_size=512,
        seq_length=32768,
        vocab_size=262144,
    )
    assert differences(provider, of_weights) == []


def test_the_factor_on_the_embeddings_of_gemma_3_follows_the_width_unless_it_is_set():
    provider = Gemma3ModelProvider()
    provider.hidden_size = 256
    assert (provider.embedding_multiplier, replace(provider, hidden_size=64).embedding_multiplier) == (16, 8)
    chosen = Gemma3ModelProvider(hidden_size=256, embedding_multiplier=1.0)
    chosen.hidden_size = 64
    assert chosen.embedding_multiplier == 1.0


def test_layers_of_further_tokens_are_repeated_as_often_as_the_recipe_sets():
    sizes = dict.fromkeys(FAMILIES["nemotron_h"].hybrid.required, 8)
    further = {"num_nextn_predict_layers": 1, "mtp_hybrid_override_pattern": "*E", "moe_latent_size": 4}
    content = {"model_type": "nemotron_h", **sizes, "hybrid_override_pattern": "M*-E", **further}
    provider = AutoBridge.from_hf_config(content).to_megatron_provider(load_weights=False)
    patterns = [provider.hybrid_layer_pattern]
    for number in (2, 0, 1):
        provider.mtp_num_layers = number
        patterns.append(provider.hybrid_layer_pattern)
    assert patterns == ["M*-E/*E", "M*-E/*E/*E", "M*-E", "M*-E/*E"]
    assert (provider.mtp_use_repeated_layer, provider.transformer["moe_latent_size"]) == (True, 4)


def test_a_model_that_is_computed_differently_warns_and_has_no_weights(tmp_path):
    transformers = pytest.importorskip("transformers")
    content = json.loads(transformers.DeepseekV3Config(n_group=1, rms_norm_eps=1e-5).to_json_string())
    bridge = AutoBridge.from_hf_config(content)
    with pytest.warns(UserWarning, match=r"rms_norm_eps=1e-05 .* a run starts from random ones"):
        assert bridge.to_megatron_provider(load_weights=False).layernorm_epsilon == 1e-5
    with pytest.raises(HuggingFaceError, match="because the model would compute different results"):
        bridge.to_megatron_provider(hf_path=tmp_path)


def test_one_layer_of_the_engine_is_a_warning():
    with pytest.warns(UserWarning, match="built of Transformer Engine's modules one by one"):
        GPTModelProvider(use_transformer_engine_full_layer_spec=True)


def test_a_section_of_a_recipe_is_exported_as_the_model_that_it_was_made_of():
    provider = AutoBridge.from_hf_config(LLAMA).to_megatron_provider(load_weights=False)
    provider.offload_modules = None  # as recipes assign them
    provider.moe_router_padding_for_fp8 = False
    provider.moe_flex_dispatcher_backend = "hybridep"
    written = config_of(provider, vocab_size=256, dtype="bfloat16")
    assert {name: written.get(name) for name in LLAMA} == LLAMA
    provider.glu_linear_offset = 1.0
    with pytest.raises(HuggingFaceError, match=r"model.transformer=\{'glu_linear_offset': 1.0\}"):
        config_of(provider, vocab_size=256, dtype="bfloat16")


def test_fields_of_a_section_with_its_own_model_are_compared():
    @dataclass(kw_only=True)
    class Scaled(GPTModelConfig):
        scale: float = 2.0

        def model_family(self):
            raise NotImplementedError

    assert differences(Scaled(**SIZES), GPTModelConfig(**SIZES)) == ["model.scale=2.0"]


@pytest.mark.parametrize(
    "name", ["OlMoEModelProvider", "Gemma3ModelProvider", "MLAModelProvider", "HybridModelProvider"]
)
def test_sections_of_every_provider_load_back(name):
    config = _pretrain_common()
    hybrid = {"hybrid_layer_pattern": "M*"} if name == "HybridModelProvider" else {}
    config.model = getattr(providers, name)(**SIZES, **hybrid)
    again = ConfigContainer.from_dict(config.to_dict(), REGISTRY.classes)
    assert (type(again.model), again.model) == (type(config.model), config.model)
