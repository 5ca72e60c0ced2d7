"""Fusion of the weights of gated-delta layers and of attention with an output gate, as Megatron Core stores them.

transformers stores them key head by key head, and head by head; Megatron Core one kind of values after another, and
group by group. Shape letters: K key heads and G query groups on this rank, R value heads or queries of each, D channels
of a head, H hidden size.
"""

from collections.abc import Sequence
from typing import Any

import torch


def fuse_gated_delta(parts: Sequence[torch.Tensor], config: Any) -> torch.Tensor:
    """Return the input projection of a rank from its key heads of `in_proj_qkvz` and `in_proj_ba`."""
    key, value, repeats = _widths(config)
    heads, numbers = parts
    by_head = heads.reshape(-1, 2 * key + 2 * value, *heads.shape[1:])  # [K, 2 D + 2 R D, H]
    pairs = numbers.reshape(-1, 2 * repeats, *numbers.shape[1:])  # [K, 2 R, H]
    return torch.cat(
        [
            *(part.flatten(0, 1) for part in torch.split(by_head, [key, key, value, value], dim=1)),
            *(part.flatten(0, 1) for part in torch.split(pairs, repeats, dim=1)),
        ]
    )


def split_gated_delta(parameter: torch.Tensor, config: Any) -> list[torch.Tensor]:
    """Return `in_proj_qkvz` and `in_proj_ba` of the input projection of a complete model."""
    key, value, repeats = _widths(config)
    heads = config.linear_num_key_heads
    widths = [key, key, value, value, repeats, repeats]
    parts = torch.split(parameter, [width * heads for width in widths])
    by_head = [part.reshape(heads, -1, *part.shape[1:]) for part in parts]
    return [torch.cat(by_head[:4], dim=1).flatten(0, 1), torch.cat(by_head[4:], dim=1).flatten(0, 1)]


def _widths(config: Any) -> tuple[int, int, int]:
    """Return the widths of a key, of the values of a key head, and their number."""
    repeats = config.linear_num_value_heads // config.linear_num_key_heads
    return config.linear_key_head_dim, repeats * config.linear_value_head_dim, repeats


def convolution_rows(config: Any) -> list[int]:
    """Return the rows of queries, keys and values in the convolution of a complete model."""
    keys = config.linear_num_key_heads * config.linear_key_head_dim
    return [keys, keys, config.linear_num_value_heads * config.linear_value_head_dim]


def gates_after_queries(queries: torch.Tensor, *, groups: int, head_size: int) -> torch.Tensor:
    """Return the rows of queries and gates in the order of Megatron Core, from those of transformers."""
    by_head = queries.reshape(groups, -1, 2, head_size, *queries.shape[1:])  # [G, R, 2, D, H]
    return by_head.transpose(1, 2).reshape(queries.shape)


def gates_next_to_queries(queries: torch.Tensor, *, groups: int, head_size: int) -> torch.Tensor:
    """Return the rows of queries and gates in the order of transformers, from those of Megatron Core."""
    by_kind = queries.reshape(groups, 2, -1, head_size, *queries.shape[1:])  # [G, 2, R, D, H]
    return by_kind.transpose(1, 2).reshape(queries.shape)
