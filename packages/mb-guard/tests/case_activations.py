"""Functions that run on a rank of `test_activations.py`."""

import torch
import torch.nn.functional as F
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed
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
