"""Functions that run on ranks of `test_latent_attention.py`."""

from contextlib import nullcontext

import torch
from megatron.core import parallel_state
from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed
from megatron.core.transformer.spec_utils import build_module
from megatron.core.transformer.transformer_config import MLATransformerConfig

import mb_guard
from mb_host.megatron.layers import host_block_spec


def gradient_of_keys(together: bool, fault: str | None) -> list[float]:
    """Return the row sums of the gradient of this rank's part of the down projection of keys."""
    size = torch.distributed.get_world_size()
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=size)
    model_parallel_cuda_manual_seed(1)
    config = MLATransformerConfig(
        num_layers=1,
        hidden_size=16,
        num_attention_heads=4,
        tensor_model_parallel_size=size,
        sequence_parallel=together,
        q_lora_rank=None,
        kv_lora_rank=8,
        qk_head_dim=4,
        qk_pos_emb_head_dim=4,
        v_head_dim=4,
        rope_type="rope",
        add_bias_linear=False,
        attention_dropout=0.0,
        transformer_impl="local",
    )
    [layer] = host_block_spec(config).layer_specs
    attention = build_module(layer.submodules.self_attention, config=config, layer_number=1)
    rank = torch.distributed.get_rank()
    for number, weight in enumerate(attention.parameters()):
        if weight.dim() > 1:  # a part of the same matrix for any number of ranks
            rows, columns = weight.shape
            split = weight.partition_dim
            row = torch.arange(rows)[:, None] + (rank * rows if split == 0 else 0)
            column = torch.arange(columns) + (rank * columns if split == 1 else 0)
            weight.data = torch.sin(row * 1.7 + column * 0.9 + number) * 0.5
    hidden = torch.sin(torch.arange(8 * 2 * 16) * 0.37).reshape(8, 2, 16)
    with mb_guard.without(fault) if fault else nullcontext():
        output, _ = attention(hidden.chunk(size)[rank] if together else hidden, None)
        output.square().sum().backward()
    return attention.linear_kv_down_proj.weight.grad.sum(1).tolist()


def softmax_scale() -> tuple[str, float]:
    """Return the refusal of a softmax scale, and the scale of an attention that gets the setting later."""
    parallel_state.initialize_model_parallel()
    model_parallel_cuda_manual_seed(1)
    sizes = {
        "kv_lora_rank": 8,
        "qk_head_dim": 4,
        "qk_pos_emb_head_dim": 4,
        "v_head_dim": 4,
        "q_lora_rank": None,
    }
    shape = {"num_layers": 1, "hidden_size": 16, "num_attention_heads": 4, "rope_type": "rope"}
    settings = {**shape, **sizes, "add_bias_linear": False, "transformer_impl": "local"}
    try:
        MLATransformerConfig(**settings, softmax_scale=0.5)
        refused = ""
    except mb_guard.KnownFaultError as error:
        refused = str(error)
    config = MLATransformerConfig(**settings)
    config.softmax_scale = 0.5
    [layer] = host_block_spec(config).layer_specs
    attention = build_module(layer.submodules.self_attention, config=config, layer_number=1)
    return refused, attention.softmax_scale
