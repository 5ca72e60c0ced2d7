"""Functions that run on a rank of `test_activations.py`."""

from contextlib import nullcontext

import torch
import torch.nn.functional as F
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel import (
    ColumnParallelLinear,
    RowParallelLinear,
    model_parallel_cuda_manual_seed,
)
from megatron.core.transformer.mlp import MLPSubmodules
from megatron.core.transformer.moe.shared_experts import SharedExpertMLP
from megatron.core.transformer.transformer_config import TransformerConfig
from tiny_gpt import start

import mb_guard
from mb_host.megatron.layers import host_block_spec


def clamp() -> tuple[str, list[bool]]:
    """Return the refusal, and whether a layer clamps: one that is not fused and one that is."""
    start()
    model_parallel_cuda_manual_seed(1)
    settings = {
        "num_layers": 1,
        "hidden_size": 16,
        "num_attention_heads": 4,
        "gated_linear_unit": True,
        "activation_func": F.silu,
        "add_bias_linear": False,
        "transformer_impl": "local",
    }
    try:
        TransformerConfig(**settings, activation_func_clamp_value=0.5, bias_activation_fusion=True)
        refused = ""
    except mb_guard.KnownFaultError as error:
        refused = str(error)
    return refused, [_clamps(settings, fused) for fused in (False, True)]


def _clamps(settings: dict[str, object], fused: bool) -> bool:
    config = TransformerConfig(**settings, bias_activation_fusion=fused)
    [layer] = host_block_spec(config).layer_specs
    groups = ProcessGroupCollection.use_mpu_process_groups()
    mlp = layer.submodules.mlp(config=config, pg_collection=groups, is_mtp_layer=False)
    for number, weight in enumerate(mlp.parameters()):
        weight.data = torch.sin(torch.arange(weight.numel()) * 0.37 + number).reshape(weight.shape)
    hidden = 3 * torch.sin(torch.arange(32.0)).reshape(2, 1, 16)
    free, _ = mlp(hidden)
    config.activation_func_clamp_value = 0.5
    found, _ = mlp(hidden)
    first, second = mlp.linear_fc1.weight, mlp.linear_fc2.weight
    gate, linear = (hidden @ first.T).chunk(2, -1)
    right = (F.silu(gate.clamp(max=0.5)) * linear.clamp(-0.5, 0.5)) @ second.T
    clamps = torch.allclose(found, right, rtol=1e-4, atol=1e-5)
    assert clamps or torch.equal(found, free)
    return clamps


def overlapped(fault: str | None, clamp: float | None, offset: float) -> float:
    """Return how far the output of overlapped shared experts is from the formula."""
    start()
    model_parallel_cuda_manual_seed(1, force_reset_rng=True)
    config = TransformerConfig(
        num_layers=1,
        hidden_size=16,
        num_attention_heads=4,
        num_moe_experts=2,
        moe_shared_expert_intermediate_size=32,
        moe_shared_expert_overlap=True,
        moe_token_dispatcher_type="alltoall",
        gated_linear_unit=True,
        activation_func=F.silu,
        activation_func_clamp_value=clamp,
        glu_linear_offset=offset,
        add_bias_linear=False,
        bias_activation_fusion=False,
    )
    with mb_guard.without(fault) if fault else nullcontext():
        experts = SharedExpertMLP(
            config,
            MLPSubmodules(linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinear),
            gate=False,
            pg_collection=ProcessGroupCollection.use_mpu_process_groups(),
        )
    for number, weight in enumerate(experts.parameters()):
        weight.data = torch.sin(torch.arange(weight.numel()) * 0.37 + number).reshape(weight.shape)
    hidden = 3 * torch.sin(torch.arange(32.0)).reshape(2, 1, 16)
    experts.pre_forward_comm(hidden)
    experts.linear_fc1_forward_and_act()
    experts.linear_fc2_forward()
    experts.post_forward_comm()
    gate, linear = (hidden @ experts.linear_fc1.weight.T).chunk(2, -1)
    if clamp is not None:
        gate, linear = gate.clamp(max=clamp), linear.clamp(-clamp, clamp)
    right = (F.silu(gate) * (linear + offset)) @ experts.linear_fc2.weight.T
    return float((experts.get_output() - right).abs().max())
