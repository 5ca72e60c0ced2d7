"""Layers for the CPU of every model family, by its name. Needs `megatron.core` (the `mcore` extra)."""

from collections.abc import Callable, Mapping
from typing import Any

from mb_host.megatron.hybrid import host_hybrid_spec
from mb_host.megatron.layers import host_block_spec
from mb_host.megatron.t5 import host_t5_spec

HOST_LAYERS: Mapping[str, Callable[..., Any]] = {
    "gpt": host_block_spec,
    "hybrid": host_hybrid_spec,
    "t5": host_t5_spec,
    "mimo": host_block_spec,
}
"""Family -> layer specification, called as (transformer config, vp_stage=, pp_rank=)."""
