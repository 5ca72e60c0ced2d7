"""Functions that run on ranks of `test_rotary.py`."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from megatron.core.models.common.embeddings import YarnRotaryEmbedding, rope_utils
from megatron.core.transformer import attention
from megatron.core.transformer.identity_op import IdentityOp
from tiny_gpt import LENGTH, gpt, start

import mb_guard

FACTOR, LENGTHS = 1.5, (5, 3)
YARN = {
    "scaling_factor": 8.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 4.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 0.0,
}


def frequencies(fault: str | None, kv_channels: int, rotary_percent: float) -> list[float]:
    """Return the angle per token of each rotated pair of a head."""
    start()
    with mb_guard.without(fault) if fault else nullcontext():
        angles, _ = YarnRotaryEmbedding(kv_channels, rotary_percent, **YARN)(2)
    return angles[1, 0, 0, : angles.size(-1) // 2].tolist()


def fused(
    heads: torch.Tensor, cu_seqlens: torch.Tensor, angles: torch.Tensor, **_others: Any
) -> torch.Tensor:
    """Rotate each sequence from position 0 on, as Transformer Engine's kernel does: without a factor."""
    parts = heads.split((cu_seqlens[1:] - cu_seqlens[:-1]).tolist())
    return torch.cat([turned(part, angles[: len(part), 0], 1.0) for part in parts])


def turned(heads: torch.Tensor, angles: torch.Tensor, factor: float) -> torch.Tensor:
    """Rotate pairs of values as complex numbers, and multiply them by a factor; leave the rest of the head."""
    width = angles.size(-1)
    real, imaginary = heads[..., :width].chunk(2, dim=-1)
    turns = torch.polar(torch.full_like(angles, factor), angles)[..., : width // 2]
    result = torch.complex(real.contiguous(), imaginary.contiguous()) * turns
    return torch.cat((result.real, result.imag, heads[..., width:]), dim=-1)


def packed(fault: str | None) -> float:
    """Return how far the fused rotation of two packed sequences is from their rotation by a formula."""
    start()
    heads = torch.randn(sum(LENGTHS), 2, 12, generator=torch.Generator().manual_seed(0))
    angles = (torch.arange(max(LENGTHS))[:, None] * torch.tensor([1.0, 0.3, 0.1, 0.03])).repeat(1, 2)
    config = SimpleNamespace(apply_rope_fusion=True, multi_latent_attention=False, rotary_interleaved=False)
    borders = torch.tensor([0, LENGTHS[0], sum(LENGTHS)])
    with (
        mb_guard.without(fault) if fault else nullcontext(),
        patch.object(rope_utils, "fused_apply_rotary_pos_emb_thd", fused),
    ):
        # attention has the function under its own name
        found = attention.apply_rotary_pos_emb(
            heads, angles[:, None, None], config=config, cu_seqlens=borders, mscale=FACTOR
        )
    parts = heads.split(LENGTHS)
    right = torch.cat([turned(part, angles[: len(part), None], FACTOR) for part in parts])
    return float((found - right).abs().max())


def padded(fault: str | None) -> float:
    """Return how far the interleaved pairs of a pack with an empty sequence are from their rotation by a formula."""
    start()
    heads = torch.randn(sum(LENGTHS), 2, 8, generator=torch.Generator().manual_seed(0))
    angles = torch.arange(max(LENGTHS))[:, None] * torch.tensor([1.0, 0.3, 0.1, 0.03])
    config = SimpleNamespace(apply_rope_fusion=False, multi_latent_attention=False, rotary_interleaved=True)
    borders = torch.tensor([0, LENGTHS[0], sum(LENGTHS), sum(LENGTHS)])
    with mb_guard.without(fault) if fault else nullcontext():
        found = attention.apply_rotary_pos_emb(
            heads, angles.repeat_interleave(2, dim=1)[:, None, None], config=config, cu_seqlens=borders
        )
    pairs = torch.view_as_complex(heads.unflatten(-1, (4, 2)))
    positions = torch.cat([torch.arange(length) for length in LENGTHS])
    turns = torch.polar(torch.ones_like(angles), angles)[positions, None]
    return float((found - torch.view_as_real(pairs * turns).flatten(-2)).abs().max())


def in_one_kernel(fault: str | None) -> float:
    """Return how far attention whose queries and keys are rotated by one kernel is from attention that is not fused."""

    def kernel(mixed: torch.Tensor, queries: torch.Tensor, keys: torch.Tensor, sizes: list[int]) -> Any:
        query, key, value = mixed.split(sizes, dim=-1)
        query = query.reshape(*query.shape[:2], -1, sizes[1])
        return turned(query, queries, 1.0), turned(key, keys, 1.0), value

    start()
    model = gpt(num_layers=1)
    layer = model.decoder.layers[0].self_attention
    layer._yarn_concentration_factor = FACTOR
    layer.q_layernorm = layer.k_layernorm = IdentityOp()
    hidden = torch.randn(LENGTH, 1, 32, generator=torch.Generator().manual_seed(0))
    angles = model.rotary_pos_emb(LENGTH)
    right, _ = layer(hidden, None, rotary_pos_emb=angles)
    layer.config.fused_single_qkv_rope = True
    with (
        mb_guard.without(fault) if fault else nullcontext(),
        patch.multiple(
            attention, create=True, HAVE_FUSED_QKV_ROPE=True, apply_fused_qkv_rotary_pos_emb=kernel
        ),
    ):
        found, _ = layer(hidden, None, rotary_pos_emb=angles)
    return float((found - right).abs().max() / right.abs().max())
