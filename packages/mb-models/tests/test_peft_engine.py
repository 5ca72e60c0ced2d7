"""Adapters on layers with the interface that Megatron gives Transformer Engine's, which need a GPU themselves."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from mb_models.peft.config import CanonicalLoRA, DoRA, LoRA
from mb_models.peft.lora import install, merge

CONFIG = SimpleNamespace(
    gated_linear_unit=True,
    recompute_granularity=None,
    num_query_groups=2,
    num_attention_heads=4,
    kv_channels=4,
    hidden_size=16,
)


class OneRank:
    def size(self):
        return 1


class TEColumnParallelLinear(torch.nn.Module):
    """Stand-in for Megatron's class of this name, on one rank."""

    def __init__(self, outputs, inputs=16, *, bias=False, bias_later=False):
        super().__init__()
        self.config, self._tp_group, self.sequence_parallel = CONFIG, OneRank(), False
        self.use_bias, self.te_return_bias = bias, bias and bias_later
        self.weight = torch.nn.Parameter(torch.randn(outputs, inputs))
        self.bias = torch.nn.Parameter(torch.randn(outputs)) if bias else torch.empty(0)

    def forward(self, x):
        output = F.linear(x, self.weight, self.bias if self.use_bias and not self.te_return_bias else None)
        return output, self.bias if self.te_return_bias else None


class TERowParallelLinear(TEColumnParallelLinear):
    """Stand-in for Megatron's class of this name, on one rank."""


class TELayerNormColumnParallelLinear(TEColumnParallelLinear):
    """Stand-in that normalises its input and returns it on request, in the positions of Megatron's class."""

    return_layernorm_output = False

    def forward(self, x):
        normalised = F.rms_norm(x, x.shape[-1:])
        output, bias = super().forward(normalised)
        if not self.return_layernorm_output:
            return output, bias
        return (output, bias, normalised) if self.te_return_bias else ((output, normalised), None)


class Chunk(torch.nn.Module):
    """The linear layers of a transformer layer, in sequence."""

    def __init__(self, **biases):
        super().__init__()
        self.config = CONFIG
        self.linear_qkv = TELayerNormColumnParallelLinear(32, **biases)
        self.linear_proj = TERowParallelLinear(16, 32, **biases)
        self.linear_fc1 = TELayerNormColumnParallelLinear(24, **biases)
        self.linear_fc2 = TERowParallelLinear(16, 24, **biases)

    def forward(self, x):
        for layer in (self.linear_qkv, self.linear_proj, self.linear_fc1, self.linear_fc2):
            x, bias = layer(x)
            x = x if bias is None else x + bias
        return x


@pytest.mark.parametrize("biases", [{}, {"bias": True}, {"bias": True, "bias_later": True}])
@pytest.mark.parametrize("kind", [LoRA, CanonicalLoRA, DoRA])
def test_adapters_start_without_effect_read_the_normalised_input_and_merge_exactly(biases, kind, groups):
    torch.manual_seed(0)
    chunk, x = Chunk(**biases), torch.randn(5, 16)
    before = chunk(x)
    install([chunk], kind(dim=4))
    assert torch.allclose(chunk(x), before, atol=1e-4)
    chunk(x).square().sum().backward()
    assert {name for name, value in chunk.named_parameters() if value.grad is not None} == {
        name for name, _ in chunk.named_parameters() if ".adapter." in name
    }
    with torch.no_grad():
        for name, value in chunk.named_parameters():
            if ".adapter." in name:
                value.add_(0.1 * torch.randn(value.shape))
        adapted = chunk(x)
        merge([chunk])
        assert (adapted - before).abs().max() > 1e-2
        assert torch.allclose(chunk(x), adapted, rtol=1e-3, atol=1e-3)


class TELinear(TEColumnParallelLinear):
    """Stand-in for Megatron's class of this name, of which every rank has the complete layer."""

    def sharded_state_dict(self, prefix="", sharded_offsets=(), metadata=None):
        return {f"{prefix}weight": self.weight}


@pytest.mark.parametrize("kind", [LoRA, DoRA])
def test_adapters_of_a_layer_that_every_rank_has_are_replicated(kind, groups):
    """Such as down projections of latent attention; with sequence parallelism, a rank has a part of the tokens."""
    chunk = torch.nn.ModuleDict({"linear_q_down_proj": TELinear(8)})
    layer = chunk["linear_q_down_proj"]
    layer.config, layer.sequence_parallel = SimpleNamespace(sequence_parallel=True), False
    layer._tp_group = SimpleNamespace(size=lambda: 2, rank=lambda: 1)
    install([chunk], kind(dim=4, target_modules=["linear_q_down_proj"]))
    assert {
        (value.tensor_model_parallel, value.sequence_parallel) for value in layer.adapter.parameters()
    } == {(False, True)}
    layer(torch.ones(3, 16))[0].sum().backward()
    state = layer.sharded_state_dict("a.", metadata={"dp_cp_group": groups.dp_cp})
    pair = ["main.lora_a", "main.lora_b"]
    names = ["magnitude", *pair] if kind is DoRA else pair
    assert sorted(state) == [*(f"a.adapter.{name}" for name in names), "a.weight"]
    assert {state[f"a.adapter.{name}"].replica_id for name in names} == {(0, 1, 0)}
