"""Dot-product attention whose scores have a soft cap (Gemma 2), from torch's operations on any device.

Shape suffixes: S sequence on this rank, T sequence over all context-parallel ranks, B microbatch, G query groups and R
queries of a group on this tensor-parallel rank, D channels of a head.
"""

import math
from contextlib import AbstractContextManager, nullcontext

import torch
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel import get_cuda_rng_tracker
from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.utils import is_layer_window_attention
from torch import Tensor

from mb_models.errors import ModelConfigError


class SoftcappedAttention(MegatronModule):  # type: ignore[misc] # Megatron Core has no types
    """Causal attention with the soft cap c on its scores x, c tanh(x / c), which fused kernels do not compute.

    Supports windows, query groups, dropout, packed sequences and context parallelism, under which keys and values are
    gathered from all ranks. Holds the scores of a layer in memory.
    """

    def __init__(
        self,
        config: TransformerConfig,
        layer_number: int,
        attn_mask_type: AttnMaskType,
        attention_dropout: float | None = None,
        softmax_scale: float | None = None,
        pg_collection: ProcessGroupCollection | None = None,
        *,
        softcap: float,
        **_unused: object,
    ) -> None:
        super().__init__(config=config)
        _require_causal(attn_mask_type)
        groups = pg_collection or ProcessGroupCollection.use_mpu_process_groups(required_pgs=["cp"])
        self.cp_group = groups.cp if config.context_parallel_size > 1 else None
        self.softcap = softcap
        self.softmax_scale = softmax_scale or 1.0 / math.sqrt(config.kv_channels)
        self.dropout = config.attention_dropout if attention_dropout is None else attention_dropout
        windowed = is_layer_window_attention(config.window_size, config.window_attn_skip_freq, layer_number)
        self.window_left = config.window_size[0] if windowed and config.window_size[0] >= 0 else None

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None = None,
        attn_mask_type: AttnMaskType | None = None,
        attention_bias: Tensor | None = None,
        packed_seq_params: PackedSeqParams | None = None,
    ) -> Tensor:
        """Return the attention output, [S, B, N*D], of query [S, B, N, D] and key and value [S, B, G, D].

        Collective over the context-parallel group. Packed sequences are [S, N, D] and [S, G, D], and attend each only
        to itself; the output is [S, N*D]. `attention_mask` is True for masked positions and broadcasts to [B, N, S, T].

        Raises:
            ValueError: a bias is passed, or a mask with packed sequences or under context parallelism.
            ModelConfigError: the mask is not causal.
        """
        if attn_mask_type is not None:
            _require_causal(attn_mask_type)
        if attention_bias is not None or (
            attention_mask is not None and self._needs_no_mask(packed_seq_params)
        ):
            raise ValueError(
                "SoftcappedAttention.forward: attention_bias, or attention_mask with packed sequences or context "
                "parallelism, is not supported, because the mask follows from the positions. Pass None."
            )
        if packed_seq_params is None:
            return self._attend(query, key, value, attention_mask)
        packed = packed_seq_params
        borders = packed.cu_seqlens_q if packed.cu_seqlens_q_padded is None else packed.cu_seqlens_q_padded
        lengths = (torch.diff(borders) // (1 if self.cp_group is None else self.cp_group.size())).tolist()
        parts = (torch.split(tensor.unsqueeze(1), lengths) for tensor in (query, key, value))
        outputs = [self._attend(*part) for part in zip(*parts, strict=True) if len(part[0])]
        return torch.cat(outputs).squeeze(1)

    def _needs_no_mask(self, packed: PackedSeqParams | None) -> bool:
        return packed is not None or self.cp_group is not None

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, masked: Tensor | None = None) -> Tensor:
        allowed_ST = self._allowed(query.size(0), key.size(0), query.device)
        if self.cp_group is not None:
            key = gather_from_sequence_parallel_region(key, group=self.cp_group)
            value = gather_from_sequence_parallel_region(value, group=self.cp_group)
        groups = key.size(2)
        query_SBGRD = query.reshape(*query.shape[:2], groups, -1, query.size(3))
        scores = torch.einsum("sbgrd,tbgd->bgrst", query_SBGRD, key) * self.softmax_scale
        scores = self.softcap * torch.tanh(scores / self.softcap)
        if self.config.attention_softmax_in_fp32:
            scores = scores.float()
        scores = scores.masked_fill(~allowed_ST, -math.inf)
        if masked is not None:
            by_head = masked.expand(-1, query.size(2), -1, -1)
            by_group = by_head.reshape(len(by_head), groups, -1, *by_head.shape[2:])
            scores = scores.masked_fill(by_group, torch.finfo(scores.dtype).min)
        weights = torch.softmax(scores, dim=-1).to(query.dtype)
        with self._random_state():
            weights = torch.nn.functional.dropout(weights, self.dropout, self.training)
        output: Tensor = torch.einsum("bgrst,tbgd->sbgrd", weights, value)
        return output.flatten(2)

    def _allowed(self, queries: int, keys: int, device: torch.device) -> Tensor:
        """Return which keys, in the order of the ranks, each query of this rank attends to."""
        if self.cp_group is None:  # fewer queries than keys: the queries are the last tokens
            query_positions = torch.arange(keys - queries, keys, device=device)
            key_positions = torch.arange(keys, device=device)
        else:
            ranks = self.cp_group.size()
            by_rank = [
                _zigzag_positions(keys, rank=rank, ranks=ranks, device=device) for rank in range(ranks)
            ]
            query_positions, key_positions = by_rank[self.cp_group.rank()], torch.cat(by_rank)
        distance_ST = query_positions[:, None] - key_positions[None, :]
        allowed_ST = distance_ST >= 0
        return allowed_ST if self.window_left is None else allowed_ST & (distance_ST <= self.window_left)

    def _random_state(self) -> AbstractContextManager[None]:
        """Return the context for dropout, as in Megatron's attention: each tensor-parallel rank drops other heads."""
        if not self.training or self.dropout == 0.0 or self.config.sequence_parallel:
            return nullcontext()
        fork: AbstractContextManager[None] = get_cuda_rng_tracker().fork()
        return fork


def _require_causal(mask: AttnMaskType) -> None:
    if mask not in (AttnMaskType.causal, AttnMaskType.padding_causal):
        raise ModelConfigError(
            [
                f"model.attn_logit_softcapping: is set in attention with the mask {mask.name}, and only causal "
                "attention has a soft cap. Set it to null."
            ]
        )


def _zigzag_positions(length: int, *, rank: int, ranks: int, device: torch.device) -> Tensor:
    """Return the positions in the complete sequence of a context-parallel rank's two chunks, of `length` in all."""
    half = length // 2
    offsets = torch.arange(half, device=device)
    return torch.cat([rank * half + offsets, (2 * ranks - 1 - rank) * half + offsets])
