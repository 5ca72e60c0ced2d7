"""Adapters of experts in the format of Hugging Face's peft."""

import dataclasses
import json

import pytest
import torch
from hf_models import make
from hf_ranks import TOKENS, build

from mb_models.errors import HuggingFaceError
from mb_models.hf.config_json import read_config, section_of
from mb_models.hf.export import export_model
from mb_models.hf.load import load_hf_weights
from mb_models.hf.save import save_hf_model
from mb_models.peft.config import CanonicalLoRA, DoRA, LoRA
from mb_models.peft.hugging_face import save_adapters
from mb_models.peft.lora import merge

peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")


def adapted(kind, section, groups, folder, **settings):
    """Return Megatron's model of a random folder with random adapters, and its section."""
    model = make(kind, folder / "in")
    config = dataclasses.replace(
        section_of(read_config(folder / "in"), dtype="float32"), transformer_impl="local", **settings
    )
    chunk = build(config, groups)
    load_hf_weights([chunk], folder / "in", pg_collection=groups)
    section.install([chunk])
    torch.manual_seed(3)
    with torch.no_grad():
        for name, value in chunk.named_parameters():
            if ".adapter." in name:
                value.add_(0.1 * torch.randn_like(value))
    return model, config, chunk.eval()


def export(chunk, section, config, groups, folder):
    save_adapters(
        chunk,
        folder / "adapters",
        section=section,
        config=config,
        pg_collection=groups,
        model_type=read_config(folder / "in")["model_type"],
    )


@pytest.mark.parametrize(
    ("kind", "section"),
    [
        ("mixtral", LoRA(dim=4)),
        ("qwen2-moe", LoRA(dim=4, alpha=6.0, dropout=0.1)),
        ("qwen3-moe", CanonicalLoRA(dim=3, alpha=6.0)),
        ("qwen3-moe", LoRA(dim=2, target_modules=["*.local_experts.1.linear_fc2", "linear_qkv"])),
        ("qwen3-moe", CanonicalLoRA(dim=2, target_modules=["*.layers.0.*.local_experts.3.linear_fc1_up"])),
        ("deepseek-v3", LoRA(dim=4, target_modules=["linear_fc1", "linear_fc2", "linear_proj"])),
        ("qwen2-moe", LoRA(dim=4, target_modules=["*.shared_experts.linear_fc1", "linear_proj"])),
        ("qwen2-moe", DoRA(dim=4, target_modules=["linear_qkv", "linear_proj"])),
        ("gpt-oss", LoRA(dim=4)),
        ("gpt-oss", CanonicalLoRA(dim=4)),
        ("nemotron-h-moe", LoRA(dim=4)),
        ("qwen3-next", LoRA(dim=4)),
        ("phi3", CanonicalLoRA(dim=4, target_modules=["linear_q", "linear_v", "linear_fc1_up"])),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_adapters_of_experts_load_into_peft(kind, section, groups, tmp_path):
    model, config, chunk = adapted(kind, section, groups, tmp_path)
    export(chunk, section, config, groups, tmp_path)
    with torch.no_grad():
        plain = model(TOKENS).logits
        ours = chunk(TOKENS, torch.arange(20).expand(2, -1), None)
    theirs = peft.PeftModel.from_pretrained(model, tmp_path / "adapters").eval()
    with torch.no_grad():
        loaded = theirs(TOKENS).logits
    assert (ours - plain).abs().max() > 1e-3
    assert (loaded - ours).abs().max() < 1e-5


@pytest.mark.parametrize("grouped", [True, False])
@pytest.mark.parametrize(
    ("kind", "section"),
    [
        ("mixtral", LoRA(dim=4, alpha=6.0, normalize_moe_lora=True)),
        ("qwen3-moe", CanonicalLoRA(dim=4, normalize_moe_lora=True)),
        ("gpt-oss", LoRA(dim=8, share_expert_adapters=False, normalize_moe_lora=True)),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_adapters_of_grouped_experts_and_of_a_lower_rank_load_into_peft(
    kind, section, grouped, groups, tmp_path
):
    model, config, chunk = adapted(kind, section, groups, tmp_path, moe_grouped_gemm=grouped)
    export(chunk, section, config, groups, tmp_path)
    content = json.loads((tmp_path / "adapters" / "adapter_config.json").read_text())
    rank, canonical = section.dim // config.moe_router_topk, isinstance(section, CanonicalLoRA)
    assert content["rank_pattern"]["mlp.experts.down_proj"] == rank
    assert content["rank_pattern"]["mlp.experts.gate_up_proj"] == rank * (1 + canonical)
    with torch.no_grad():
        ours = chunk(TOKENS, torch.arange(20).expand(2, -1), None)
        theirs = peft.PeftModel.from_pretrained(model, tmp_path / "adapters").eval()
        assert (theirs(TOKENS).logits - ours).abs().max() < 1e-5
        merge([chunk])
        save_hf_model(chunk, tmp_path / "merged", config=config, pg_collection=groups)
        merged = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged").eval()
        assert (merged(TOKENS).logits - ours).abs().max() < 1e-4


@pytest.mark.parametrize(
    "section", [LoRA(dim=2, target_modules=["output_layer"]), DoRA(dim=2, target_modules=["output_layer"])]
)
@pytest.mark.parametrize("kind", ["llama", "gpt-neox"])
def test_adapters_of_an_output_layer_load_into_peft_without_its_padding(kind, section, groups, tmp_path):
    padding = {"vocab_size": 128, "unpadded_vocab_size": 96}
    model, config, chunk = adapted(kind, section, groups, tmp_path, **padding)
    empty = build(config, groups)
    export_model(
        empty,
        tmp_path / "adapters",
        section=config,
        load=lambda _: empty.load_state_dict(chunk.state_dict()),
        pg_collection=groups,
        peft=section,
        adapters_only=True,
        carried=tmp_path / "in",
    )
    theirs = peft.PeftModel.from_pretrained(model, tmp_path / "adapters").eval()
    with torch.no_grad():
        ours = chunk(TOKENS, torch.arange(20).expand(2, -1), None)[..., :96]
        assert (theirs(TOKENS).logits - ours).abs().max() < 1e-5


def test_dora_of_experts_is_rejected(groups, tmp_path):
    section = DoRA(dim=2)
    _, config, chunk = adapted("mixtral", section, groups, tmp_path)
    with pytest.raises(
        HuggingFaceError,
        match=r"local_experts\.0\.linear_fc\d: has DoRA, but peft has only LoRA for it.* --merge",
    ):
        export(chunk, section, config, groups, tmp_path)


def test_the_configuration_names_tensors_of_experts(groups, tmp_path):
    section = CanonicalLoRA(dim=2, alpha=3.0, dropout=0.5, target_modules=["linear_fc1", "linear_fc2"])
    _, config, chunk = adapted("qwen3-moe", section, groups, tmp_path)
    export(chunk, section, config, groups, tmp_path)
    content = json.loads((tmp_path / "adapters" / "adapter_config.json").read_text())
    assert content["target_modules"] == []
    assert content["target_parameters"] == ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
    assert content["rank_pattern"] == {"mlp.experts.gate_up_proj": 4}
    assert content["alpha_pattern"] == {"mlp.experts.gate_up_proj": 6.0}
    assert content["lora_dropout"] == 0.0
