"""Functions that run on ranks of `test_attention.py`."""

import sys
from contextlib import nullcontext
from unittest.mock import patch

import torch
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.fusions.fused_softmax import FusedScaleMaskSoftmax
from megatron.core.models.hybrid.hybrid_model import HybridModel
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.ssm.gated_delta_net import GatedDeltaNet, GatedDeltaNetSubmodules, common
from megatron.core.tensor_parallel import (
    ColumnParallelLinear,
    RowParallelLinear,
    model_parallel_cuda_manual_seed,
    param_is_not_tensor_parallel_duplicate,
)
from megatron.core.transformer.attention import CrossAttention, CrossAttentionSubmodules
from megatron.core.transformer.dot_product_attention import DotProductAttention
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.utils import attention_mask_func
from tiny_gpt import LENGTH, batch, gpt, gradients, start

import mb_guard
from mb_host.megatron.hybrid import host_hybrid_spec
from mb_host.megatron.layers import HostNorm

finalize_model_grads = sys.modules["megatron.core.distributed.finalize_model_grads"]
"""The module; the package has a function of this name."""

LATENT = {
    "multi_latent_attention": True,
    "qk_layernorm": True,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_head_dim": 8,
    "qk_pos_emb_head_dim": 8,
    "v_head_dim": 8,
    "rope_type": "rope",
}


def window(fault: str | None) -> float:
    """Return how far attention with a window and a mask is from a softmax over the places that both allow."""
    scores = torch.randn(1, 2, 8, 8, generator=torch.Generator().manual_seed(0))
    place = torch.arange(8)
    hidden = (place > 1) & (place < 4)
    mask = (hidden[None, :] | (place[None, :] > place[:, None]))[None, None] & ~torch.eye(8).bool()
    with mb_guard.without(fault) if fault else nullcontext():
        softmax = FusedScaleMaskSoftmax(
            False, False, AttnMaskType.causal, False, attention_mask_func, True, None, window_size=(3, 0)
        )
        found = softmax.forward_torch_softmax(scores.clone(), mask)
    distance = place[:, None] - place[None, :]
    allowed = ~mask & (distance >= 0) & (distance <= 3)
    return float((found - scores.masked_fill(~allowed, -10000.0).softmax(-1)).abs().max())


def latent_norms(fault: str | None) -> list[float]:
    """Return the gradients of both norms of latent attention on two tensor-parallel ranks, relative to one rank."""
    whole = batch(torch.ones(1, LENGTH))
    start()
    name = "decoder.layers.0.self_attention.{}_layernorm.weight"
    names = [name.format(part) for part in ("q", "kv")]
    model = gpt(**LATENT)
    state = {key: value for key, value in model.state_dict().items() if value is not None}
    right = gradients(model, [whole])
    with mb_guard.without(fault) if fault else nullcontext():
        start(tensor_model_parallel_size=2)
        split = gpt(**LATENT, tensor_model_parallel_size=2)
        rank = torch.distributed.get_rank()
        with torch.no_grad():
            for key, value in split.named_parameters():
                value.copy_(part_of(state[key], value, rank))
        found = gradients(split, [whole])
    return [float((found[each] * right[each]).sum() / right[each].square().sum()) for each in names]


def sinks(fault: str | None) -> list[float]:
    """Return the norm of the gradient of the sinks as Megatron sums it, on two ranks and on one."""
    whole = batch(torch.ones(1, LENGTH))
    norms = []
    state: dict[str, torch.Tensor] = {}
    for size in (1, 2):
        start(tensor_model_parallel_size=size)
        with mb_guard.without(fault) if fault else nullcontext():
            model = gpt(softmax_type="learnable", tensor_model_parallel_size=size)
        state = state or {name: value.detach().clone() for name, value in model.named_parameters()}
        rank = torch.distributed.get_rank()
        with torch.no_grad():
            for name, value in model.named_parameters():
                value.copy_(part_of(state[name], value, rank))
        found = gradients(model, [whole])
        parameters = [(name, each) for name, each in model.named_parameters() if "softmax_offset" in name]
        counted = [found[name] for name, each in parameters if param_is_not_tensor_parallel_duplicate(each)]
        total = torch.stack([torch.zeros(()), *(each.square().sum() for each in counted)]).sum()
        if size > 1:
            torch.distributed.all_reduce(total)
        norms.append(float(total.sqrt()))
    return norms


def delta_net() -> tuple[GatedDeltaNet, TransformerConfig, ProcessGroupCollection]:
    """Return a gated delta net on two tensor-parallel ranks, its configuration and groups."""
    start(tensor_model_parallel_size=2)
    config = TransformerConfig(
        num_layers=1,
        hidden_size=16,
        num_attention_heads=4,
        tensor_model_parallel_size=2,
        experimental_attention_variant="gated_delta_net",
        linear_attention_freq=1,
        linear_num_key_heads=4,
        linear_num_value_heads=4,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        linear_conv_kernel_dim=2,
        normalization="RMSNorm",
        activation_func=torch.nn.functional.silu,
        add_bias_linear=False,
        deterministic_mode=True,
    )
    parts = GatedDeltaNetSubmodules(
        in_proj=ColumnParallelLinear, out_norm=HostNorm, out_proj=RowParallelLinear
    )
    model_parallel_cuda_manual_seed(1, force_reset_rng=True)
    groups = ProcessGroupCollection.use_mpu_process_groups()
    with patch.object(common, "HAVE_FLA", True):
        return GatedDeltaNet(config, parts, layer_number=1, pg_collection=groups), config, groups


def delta_net_convolution(fault: str | None) -> list[float]:
    """Return the first kernel of the convolution."""
    with mb_guard.without(fault) if fault else nullcontext():
        net, _, _ = delta_net()
    kernel: list[float] = net.conv1d.weight[0, 0].tolist()
    return kernel


def delta_net_norm(fault: str | None) -> tuple[list[float], list[float]]:
    """Return the gradient of the output norm as the optimizer reads it, and torch's over the heads of both ranks."""
    with mb_guard.without(fault) if fault else nullcontext():
        net, config, groups = delta_net()
        model = DistributedDataParallel(config, DistributedDataParallelConfig(), net)
        values, gates = torch.randn(2, 6, 4, 8, generator=torch.Generator().manual_seed(0))
        weight = torch.ones(8, requires_grad=True)
        normed = torch.nn.functional.rms_norm(values, (8,), weight, config.layernorm_epsilon)
        (normed * torch.nn.functional.silu(gates)).sum().backward()
        own = [each.chunk(2, 1)[groups.tp.rank()] for each in (values, gates)]
        net._apply_gated_norm(*own).sum().backward()
        finalize_model_grads._allreduce_non_tensor_model_parallel_grads([model], config, groups.tp)
    return net.out_norm.weight.main_grad.tolist(), weight.grad.tolist()


def cross_attention(fault: str | None) -> list[float]:
    """Return how far the gradients of cross attention are from torch's, of queries and keys.

    The groups that are passed pair rank 0 with 2 and 1 with 3; Megatron's own pair neighbours. The pairs have different
    inputs.
    """
    start(tensor_model_parallel_size=2)
    part, pair = divmod(torch.distributed.get_rank(), 2)
    groups = ProcessGroupCollection.use_mpu_process_groups()
    groups.tp = [torch.distributed.new_group(ranks) for ranks in ([0, 2], [1, 3])][pair]
    model_parallel_cuda_manual_seed(1, force_reset_rng=True)
    config = TransformerConfig(
        num_layers=1,
        hidden_size=16,
        num_attention_heads=4,
        attention_dropout=0.0,
        add_bias_linear=False,
        tensor_model_parallel_size=2,
    )
    parts = CrossAttentionSubmodules(
        linear_q=ColumnParallelLinear,
        linear_kv=ColumnParallelLinear,
        core_attention=DotProductAttention,
        linear_proj=RowParallelLinear,
    )
    with mb_guard.without(fault) if fault else nullcontext():
        attention = CrossAttention(
            config, parts, layer_number=1, attn_mask_type=AttnMaskType.padding, pg_collection=groups
        )
    generator = torch.Generator().manual_seed(0)
    weights = {
        name: torch.randn(shape, generator=generator) / 4
        for name, shape in {"linear_q": (16, 16), "linear_kv": (32, 16), "linear_proj": (16, 16)}.items()
    }
    with torch.no_grad():
        for name, whole in weights.items():
            weight = getattr(attention, name).weight
            weight.copy_(part_of(whole, weight, part))
    inputs = torch.randn(2, 2, 6, 1, 16, generator=generator)[pair]  # [queries and keys, S, B, H]
    queries, keys = (each.clone().requires_grad_() for each in inputs)
    attention(queries, None, key_value_states=keys)[0].square().sum().backward()

    right_queries, right_keys = (each.clone().requires_grad_() for each in inputs)
    query = (right_queries @ weights["linear_q"].T).view(6, 4, 4).transpose(0, 1)  # [heads, S, head size]
    key, value = (right_keys @ weights["linear_kv"].T).view(6, 4, 8).transpose(0, 1).chunk(2, -1)
    heads = torch.nn.functional.scaled_dot_product_attention(query, key, value)
    (heads.transpose(0, 1).reshape(6, 16) @ weights["linear_proj"].T).square().sum().backward()
    pairs = ((queries.grad, right_queries.grad), (keys.grad, right_keys.grad))
    return [float((found - right).norm() / right.norm()) for found, right in pairs]


def part_of(whole: torch.Tensor, like: torch.Tensor, rank: int) -> torch.Tensor:
    """Return the part of a weight of one rank on one of two tensor-parallel ranks."""
    for dim, (size, own) in enumerate(zip(whole.shape, like.shape, strict=True)):
        if size != own:
            return whole.chunk(2, dim)[rank]
    return whole


def packed_states(fault: str | None) -> float:
    """Return how far the outputs of a Mamba layer for a pack are from those of its sequences by themselves."""
    start()
    model_parallel_cuda_manual_seed(1, force_reset_rng=True)
    config = TransformerConfig(
        num_layers=1,
        hidden_size=32,
        num_attention_heads=4,
        hidden_dropout=0.0,
        mamba_state_dim=8,
        mamba_head_dim=8,
        mamba_num_groups=2,
    )
    model = HybridModel(
        config=config,
        hybrid_stack_spec=host_hybrid_spec(config),
        vocab_size=64,
        max_sequence_length=16,
        hybrid_layer_pattern="M",
    )
    hidden = torch.randn(16, 1, 32, generator=torch.Generator().manual_seed(0))
    borders = torch.tensor([0, 5, 12], dtype=torch.int32)  # the rest is padding
    pack = PackedSeqParams(qkv_format="thd", cu_seqlens_q=borders, cu_seqlens_kv=borders)
    with torch.no_grad(), mb_guard.without(fault) if fault else nullcontext():
        right = torch.cat([model.decoder(part, None) for part in hidden.split([5, 7, 4])])
        found = model.decoder(hidden, None, packed_seq_params=pack)
    return float((found - right).norm() / right.norm())
