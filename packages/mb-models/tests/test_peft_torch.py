"""Adapters on `torch.nn.Linear`, of a model that is not Megatron's."""

import pytest
import torch
from torch import nn

from mb_models.errors import PeftError
from mb_models.peft.adapted_linear import adapted_layers
from mb_models.peft.config import CanonicalLoRA, DoRA, LoRA
from mb_models.peft.lora import init_magnitudes, merge

X = torch.randn(5, 8, generator=torch.Generator().manual_seed(1))
KINDS = [LoRA, CanonicalLoRA, DoRA]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear_qkv, self.proj = nn.Linear(8, 12), nn.Linear(12, 8, bias=False)

    def forward(self, x):
        return self.proj(self.linear_qkv(x).tanh())


def model(section=None):
    torch.manual_seed(0)
    built = nn.Sequential(Block(), Block())
    if section is not None:
        section(built)
        with torch.no_grad():
            for _, layer in adapted_layers([built]):
                layer.adapter["main"].lora_b.normal_()
    return built


def expected(layer, section):
    """W + alpha / r B A, of DoRA with rows of the trained length (arXiv 2402.09353, section 4.1)."""
    pair = layer.adapter["main"]
    weight = layer.weight + section.alpha / section.dim * pair.lora_b @ pair.lora_a
    if isinstance(section, DoRA):
        weight = layer.adapter.magnitude[:, None] * weight / weight.norm(dim=1, keepdim=True)
    return weight


@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_computes_and_merges_the_formula(kind):
    section = kind(dim=2, alpha=6.0, target_modules=["linear_qkv"])
    adapted = model(section)
    layer = adapted[0].linear_qkv
    weight = expected(layer, section).detach()
    with torch.no_grad():
        torch.testing.assert_close(layer(X), X @ weight.T + layer.bias)
        output = adapted(X)
        merge([adapted])
        torch.testing.assert_close(layer.weight, weight)
        torch.testing.assert_close(adapted(X), output)
    assert adapted.state_dict().keys() == model().state_dict().keys()
    assert type(layer) is nn.Linear


def test_a_row_of_zeros_stays_zero_under_dora():
    """As of the vocabulary's padding, or of an unused token. Its norm is no divisor."""
    adapted = model()
    with torch.no_grad():
        adapted[0].proj.weight[3] = 0.0
    DoRA(dim=2, target_modules=["0.proj"])(adapted)
    layer = adapted[0].proj
    layer(torch.ones(5, 12)).square().sum().backward()
    assert all(value.grad.isfinite().all() for value in layer.adapter.parameters())
    merge([adapted])
    assert layer.weight.isfinite().all()
    assert not layer.weight[3].any()


@pytest.mark.parametrize("kind", KINDS)
def test_only_adapters_have_gradients(kind):
    adapted = model(kind(dim=2, target_modules=[], exclude_modules=["1.proj"]))
    adapted(X).square().sum().backward()
    trained = {name for name, value in adapted.named_parameters() if value.grad is not None}
    assert trained == {name for name, _ in adapted.named_parameters() if ".adapter." in name}
    assert {name.partition(".adapter.")[0] for name in trained} == {"0.linear_qkv", "0.proj", "1.linear_qkv"}


@pytest.mark.parametrize("kind", [LoRA, DoRA])
def test_hugging_faces_peft_computes_the_same(kind):
    peft = pytest.importorskip("peft")
    adapted = model(kind(dim=2, alpha=6.0, target_modules=["proj"]))
    init_magnitudes([adapted]) if kind is DoRA else None
    config = peft.LoraConfig(r=2, lora_alpha=6.0, target_modules=["proj"], use_dora=kind is DoRA)
    theirs = peft.get_peft_model(model(), config)
    with torch.no_grad():
        for name, layer in adapted_layers([adapted]):
            other = theirs.base_model.model.get_submodule(name)
            other.lora_A["default"].weight.copy_(layer.adapter["main"].lora_a)
            other.lora_B["default"].weight.copy_(layer.adapter["main"].lora_b)
        torch.testing.assert_close(adapted(X), theirs(X))


def test_a_model_is_adapted_once_and_again_after_a_merge():
    section = LoRA(dim=2, target_modules=["proj"])
    adapted = model(section)
    before = adapted.state_dict()
    section(adapted, training=False)
    assert not any(value.requires_grad for value in adapted.parameters())
    section(adapted)
    assert all(torch.equal(before[name], value) for name, value in adapted.state_dict().items())
    assert adapted[0].proj.adapter["main"].lora_a.requires_grad
    with pytest.raises(PeftError, match="already has the adapters of LoRA"):
        LoRA(dim=4, target_modules=["proj"])(adapted)
    merge([adapted])
    LoRA(dim=4, target_modules=["proj"])(adapted)
    assert adapted[0].proj.adapter["main"].lora_a.shape == (4, 12)


def test_the_weight_of_an_embedding_is_not_merged_into():
    tied = nn.Sequential(nn.Embedding(6, 8), nn.Linear(8, 6, bias=False))
    tied[1].weight = tied[0].weight
    embedding = tied[0].weight.detach().clone()
    LoRA(dim=2, target_modules=["1"], lora_B_init_method="normal")(tied)
    merge([tied])
    assert torch.equal(tied[0].weight, embedding)
    assert not torch.equal(tied[1].weight, embedding)


def test_a_subclass_may_not_call_its_layer():
    """torch.nn.MultiheadAttention computes with the weight of out_proj, and does not call it."""
    with pytest.raises(
        PeftError, match=r"out_proj is a NonDynamicallyQuantizableLinear, but adapters support"
    ):
        LoRA(target_modules=["out_proj"])(nn.MultiheadAttention(8, 2))


def test_an_encoder_layer_computes_with_its_adapters_in_evaluation():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    with torch.no_grad():
        before = layer(X[None])
        LoRA(dim=2, target_modules=["linear1"], lora_B_init_method="normal")(layer, training=False)
        assert not torch.equal(layer(X[None]), before)
