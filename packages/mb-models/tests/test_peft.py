"""Adapters on a small GPT in one process: what trains, what is computed, merging, peft's form."""

import pytest
import torch

from mb_host.layers import host_block_spec
from mb_models import GPTModelConfig, GPTModelProvider
from mb_models.hf.save import save_hf_model
from mb_models.peft.config import PEFT, CanonicalLoRA, DoRA, LoRA, PeftError, named
from mb_models.peft.hugging_face import save_adapters
from mb_models.peft.lora import measure, merge

TOKENS = torch.arange(40).reshape(2, 20) * 7 % 96
KINDS = [LoRA, CanonicalLoRA, DoRA]
EXPERTS = {"num_moe_experts": 4, "moe_ffn_hidden_size": 48, "moe_token_dispatcher_type": "alltoall"}


def build(tiny, groups, **settings):
    config = GPTModelConfig(**{**tiny, **settings})
    [chunk] = GPTModelProvider(config, layer_spec=host_block_spec, device=torch.device("cpu")).provide_chunks(
        groups
    )
    return config, chunk


def logits(chunk):
    return chunk(TOKENS, torch.arange(20).expand(2, -1), None)


@torch.no_grad()
def disturb(chunk):
    """Make every adapter do something."""
    generator = torch.Generator().manual_seed(0)
    for name, value in chunk.named_parameters():
        if ".adapter." in name:
            value.add_(0.1 * torch.randn(value.shape, generator=generator))


@pytest.mark.parametrize("settings", [{}, EXPERTS], ids=["dense", "experts"])
@pytest.mark.parametrize("kind", KINDS)
def test_adapters_begin_without_effect_alone_are_trained_and_merge_exactly(tiny, groups, kind, settings):
    _, chunk = build(tiny, groups, **settings)
    before = logits(chunk)
    section = kind(dim=4)
    section.install([chunk])
    assert torch.allclose(logits(chunk), before, atol=1e-6)
    logits(chunk).square().sum().backward()
    trained = {name for name, value in chunk.named_parameters() if value.requires_grad}
    assert trained == {name for name, _ in chunk.named_parameters() if section.is_adapter(name)}
    assert all(value.grad is not None for _, value in chunk.named_parameters() if value.requires_grad)
    disturb(chunk)
    with torch.no_grad():
        adapted = logits(chunk)
        merge([chunk])
        assert (adapted - before).abs().max() > 1e-3
        assert torch.allclose(logits(chunk), adapted, atol=1e-5)
    assert not any(".adapter." in name for name, _ in chunk.named_parameters())


@pytest.mark.parametrize("kind", KINDS)
def test_adapters_load_into_hugging_faces_peft(tiny, groups, kind, tmp_path):
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    config, chunk = build(tiny, groups, layernorm_epsilon=1e-6)
    save_hf_model(chunk, tmp_path / "base", config=config, pg_collection=groups)
    section = kind(dim=4, alpha=6.0)
    section.install([chunk])
    disturb(chunk)
    save_adapters(
        chunk, tmp_path / "adapters", section=section, config=config, pg_collection=groups, base="base"
    )
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    theirs = peft.PeftModel.from_pretrained(model, tmp_path / "adapters").eval()
    with torch.no_grad():
        assert (theirs(TOKENS).logits - logits(chunk.eval())).abs().max() < 1e-5


def test_dora_starts_from_the_lengths_of_the_loaded_weights(tiny, groups):
    _, chunk = build(tiny, groups)
    DoRA(dim=2).install([chunk])
    with torch.no_grad():
        for name, value in chunk.named_parameters():
            if name.endswith("linear_fc1.weight"):
                value.mul_(3)
    before = chunk.decoder.layers[0].mlp.linear_fc1.adapter.magnitude.clone()
    measure([chunk])
    assert torch.allclose(chunk.decoder.layers[0].mlp.linear_fc1.adapter.magnitude, 3 * before)


def test_adapters_learn_under_full_recompute_too(tiny, groups):
    recompute = {
        "recompute_granularity": "full",
        "recompute_method": "uniform",
        "recompute_num_layers": 1,
    }
    _, chunk = build(tiny, groups, **recompute)
    LoRA(dim=2, dropout=0.1).install([chunk.train()])
    logits(chunk).square().sum().backward()
    assert all(value.grad is not None for _, value in chunk.named_parameters() if value.requires_grad)


@pytest.mark.parametrize(
    ("section", "says"),
    [
        (LoRA(dim=0), "peft.dim: must be 1 or more, is 0"),
        (LoRA(target_modules=["q_proj"]), "name no layer on this rank"),
        (LoRA(target_modules=["core_attention"]), "adapters know Megatron's parallel layers"),
    ],
)
def test_what_cannot_be_adapted_is_refused(tiny, groups, section, says):
    _, chunk = build(tiny, groups)
    with pytest.raises(PeftError, match=says):
        section.install([chunk])


def test_names_stand_for_sections():
    assert [named(name) for name in ("lora", "canonical_lora", "dora")] == [LoRA(), CanonicalLoRA(), DoRA()]
    with pytest.raises(PeftError, match="'ia3' is none of lora, canonical_lora, dora"):
        named("ia3")


def test_a_class_of_ones_own_needs_install():
    with pytest.raises(NotImplementedError, match="PEFT has no install"):
        PEFT().install([])
