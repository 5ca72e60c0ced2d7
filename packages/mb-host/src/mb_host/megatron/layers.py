"""Components of a GPT layer that Megatron's local spec lacks on the CPU, and specs that use them.

Needs `megatron.core` (the `mcore` extra), and `mb_host.install()` before it.

Shape suffixes: S sequence on this rank, T sequence over all context-parallel ranks, B microbatch, N attention heads and
G query groups on this tensor-parallel rank, D channels of a head.
"""

import math
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec, get_gpt_layer_local_spec
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel import get_cuda_rng_tracker
from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.moe.moe_layer import MoELayer
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.utils import is_layer_window_attention
from torch import Tensor
from torch.nn.functional import layer_norm, rms_norm, scaled_dot_product_attention


class _ZeroCentredRMSNorm(torch.nn.RMSNorm):
    """RMSNorm that stores its weight minus one, and computes in float32."""

    def reset_parameters(self) -> None:
        torch.nn.init.zeros_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x.float(), self.normalized_shape, 1.0 + self.weight.float(), self.eps).type_as(x)


class _ZeroCentredLayerNorm(torch.nn.LayerNorm):
    """LayerNorm that stores its weight minus one, and computes in float32."""

    def reset_parameters(self) -> None:
        torch.nn.init.zeros_(self.weight)
        torch.nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = 1.0 + self.weight.float(), self.bias.float()
        return layer_norm(x.float(), self.normalized_shape, weight, bias, self.eps).type_as(x)


_CAUSAL = (AttnMaskType.causal, AttnMaskType.padding_causal)
_NORMS = {"LayerNorm": torch.nn.LayerNorm, "RMSNorm": torch.nn.RMSNorm}
_ZERO_CENTRED_NORMS = {"LayerNorm": _ZeroCentredLayerNorm, "RMSNorm": _ZeroCentredRMSNorm}
# Fields that Megatron's local spec accepts and ignores.
_IGNORED_BY_LOCAL_SPEC = ("qk_l2_norm", "qk_clip", "fused_residual_rmsnorm")


class HostNorm:
    """Factory of torch's LayerNorm or RMSNorm, with support for sequence parallelism.

    Megatron's wrapper of the two rejects sequence parallelism, because it does not mark the weights. The mark, set
    here, makes Megatron sum their gradients over the tensor-parallel ranks. A class whose `__new__` returns another
    type, because Megatron instantiates classes but treats functions as built modules.
    """

    def __new__(  # type: ignore[misc]
        cls, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, **_unused: object
    ) -> torch.nn.Module:
        """Return the norm over the last dimension, of size `hidden_size`.

        Raises:
            ValueError: `config` requires a norm that torch does not have.
        """
        if config.normalization not in _NORMS:
            raise ValueError(
                f"model.normalization: {config.normalization} is not available on the CPU, because torch does not have "
                f"it. Set one of {', '.join(_NORMS)}."
            )
        kinds = _ZERO_CENTRED_NORMS if config.layernorm_zero_centered_gamma else _NORMS
        norm: torch.nn.Module = kinds[config.normalization](hidden_size, eps=eps)
        for parameter in norm.parameters():
            parameter.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]
        return norm


class HostCoreAttention(MegatronModule):  # type: ignore[misc]
    """Dot-product attention: masks, windows, query groups, dropout, packed sequences and context parallelism.

    Under context parallelism each rank holds two of the 2n equal chunks of the sequence (rank r: chunks r and 2n-1-r),
    or of every packed sequence. Keys and values are gathered from all ranks, whatever `cp_comm_type` is.
    """

    def __init__(
        self,
        config: TransformerConfig,
        layer_number: int,
        attn_mask_type: AttnMaskType,
        attention_type: str,
        attention_dropout: float | None = None,
        softmax_scale: float | None = None,
        cp_comm_type: str | None = None,
        pg_collection: ProcessGroupCollection | None = None,
        **_head_sizes: object,
    ) -> None:
        super().__init__(config=config)
        if config.softmax_type != "vanilla":
            raise ValueError(
                f"model.softmax_type: softmax sinks are not supported (got {config.softmax_type!r}), because torch's "
                "attention has none. Use Megatron's DotProductAttention, or softmax_type='vanilla'."
            )
        groups = pg_collection or ProcessGroupCollection.use_mpu_process_groups(required_pgs=["cp"])
        self.cp_group = groups.cp if config.context_parallel_size > 1 else None
        if pg_collection is not None:
            # Otherwise Megatron reads it from parallel_state when weights are saved.
            self.tp_group = pg_collection.tp
        self.attn_mask_type = attn_mask_type
        self.softmax_scale = softmax_scale or 1.0 / math.sqrt(config.kv_channels)
        self.dropout = config.attention_dropout if attention_dropout is None else attention_dropout
        windowed = is_layer_window_attention(config.window_size, config.window_attn_skip_freq, layer_number)
        self.window = config.window_size if windowed else (-1, -1)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        attn_mask_type: AttnMaskType | None = None,
        attention_bias: Tensor | None = None,
        packed_seq_params: PackedSeqParams | None = None,
    ) -> Tensor:
        """Return the attention output, [S, B, N*D], of query [S, B, N, D] and key and value [S, B, G, D].

        Collective over the context-parallel group. Causal attention needs no mask; `attention_mask` is
        True for masked positions and broadcasts to [B, N, S, T]. A window (left, right) restricts attention further;
        -1 is no limit, and right is 0 where attention is causal.

        Packed sequences are concatenated in query [S, N, D], and key and value [S, G, D]. Each sequence attends only to
        itself, and the output is [S, N*D]. Their boundaries are those of the complete sequences.

        Raises:
            ValueError: A bias is passed, or a mask under context parallelism or with packed sequences.
        """
        self._reject(attention_mask, attention_bias, packed_seq_params)
        causal = (attn_mask_type or self.attn_mask_type) in _CAUSAL
        if packed_seq_params is not None:
            return self._packed(query, key, value, packed_seq_params, causal=causal)
        return self._attend(query, key, value, attention_mask, causal=causal)

    def _packed(
        self, query: Tensor, key: Tensor, value: Tensor, packed: PackedSeqParams, *, causal: bool
    ) -> Tensor:
        """Attend within each packed sequence separately: the cost is the sum of the squared lengths.

        Synchronizes with the device to read the lengths.
        """
        borders = packed.cu_seqlens_q if packed.cu_seqlens_q_padded is None else packed.cu_seqlens_q_padded
        lengths = (torch.diff(borders) // (1 if self.cp_group is None else self.cp_group.size())).tolist()
        parts = zip(*(torch.split(each.unsqueeze(1), lengths) for each in (query, key, value)), strict=True)
        outputs = [
            self._attend(queries, keys, values, None, causal=causal)
            for queries, keys, values in parts
            if len(queries)
        ]
        return torch.cat(outputs).squeeze(1)

    def _attend(
        self, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, *, causal: bool
    ) -> Tensor:
        """Return the output, [S, B, N*D], of one call of torch's attention. Collective under context parallelism."""
        lengths = (query.size(0), key.size(0))
        if self.cp_group is not None:
            key = gather_from_sequence_parallel_region(key, group=self.cp_group)
            value = gather_from_sequence_parallel_region(value, group=self.cp_group)
        allowed_ST = None
        if attention_mask is not None:
            allowed_ST = ~attention_mask
        left, right = self.window
        if causal:
            right = 0
        is_limited = left >= 0 or (right >= 0 and not causal)
        # torch needs no mask tensor for the lower triangle, and computes nothing above it
        is_lower_triangle = (
            causal
            and allowed_ST is None
            and not is_limited
            and self.cp_group is None
            and lengths[0] == lengths[1]
        )
        if is_limited or (causal and allowed_ST is None and not is_lower_triangle):
            window_ST = self._window_mask(*self._positions(*lengths), left=left, right=right)
            allowed_ST = window_ST if allowed_ST is None else allowed_ST & window_ST
        query_BNSD, key_BGTD, value_BGTD = (each.permute(1, 2, 0, 3) for each in (query, key, value))
        with self._random_state():
            output_BNSD = scaled_dot_product_attention(
                query_BNSD,
                key_BGTD,
                value_BGTD,
                attn_mask=allowed_ST,
                is_causal=is_lower_triangle,
                dropout_p=self.dropout if self.training else 0.0,
                scale=self.softmax_scale,
                enable_gqa=query.size(2) != key.size(2),
            )
        return output_BNSD.permute(2, 0, 1, 3).flatten(2)

    def _reject(
        self,
        attention_mask: Tensor | None,
        attention_bias: Tensor | None,
        packed_seq_params: PackedSeqParams | None,
    ) -> None:
        if attention_bias is not None:
            raise ValueError(
                "HostCoreAttention.forward: attention_bias is not supported on the CPU. Pass an attention_mask, or use "
                "Transformer Engine on a GPU."
            )
        if attention_mask is not None and attention_mask.dtype != torch.bool:
            raise ValueError(
                f"HostCoreAttention.forward: attention_mask is {attention_mask.dtype}, because True marks a masked "
                "position, and a mask of transformers marks the others. Pass None for a causal mask, or a mask of bool."
            )
        if packed_seq_params is not None and attention_mask is not None:
            raise ValueError(
                "HostCoreAttention.forward: packed_seq_params are not supported with an attention_mask, because their "
                "boundaries are the mask. Pass one of the two."
            )
        if attention_mask is not None and self.cp_group is not None:
            raise ValueError(
                f"HostCoreAttention.forward: attention_mask of shape {tuple(attention_mask.shape)} is not supported "
                f"with context parallelism of {self.cp_group.size()}, because its split is unknown. Pass None for a "
                "causal mask."
            )

    def _positions(self, query_length: int, key_length: int) -> tuple[Tensor, Tensor]:
        """Return the positions in the complete sequence of this rank's queries, and of the keys after gathering."""
        if self.cp_group is None:  # fewer queries than keys: the queries are the last tokens
            return torch.arange(key_length - query_length, key_length), torch.arange(key_length)
        ranks = range(self.cp_group.size())
        by_rank = [zigzag_positions(key_length, rank=rank, ranks=len(ranks)) for rank in ranks]
        return by_rank[self.cp_group.rank()], torch.cat(by_rank)

    @staticmethod
    def _window_mask(query_positions: Tensor, key_positions: Tensor, *, left: int, right: int) -> Tensor:
        """Return a mask, [S, T], that is True for keys at most `left` before and `right` after the query; -1: any."""
        distance_ST = query_positions[:, None] - key_positions[None, :]
        allowed_ST = torch.ones_like(distance_ST, dtype=torch.bool)
        if left >= 0:
            allowed_ST &= distance_ST <= left
        if right >= 0:
            allowed_ST &= distance_ST >= -right
        return allowed_ST

    def _random_state(self) -> AbstractContextManager[None]:
        """Return the context for dropout: heads differ between ranks, so each rank uses a separate random state.

        Under sequence parallelism the transformer block is already within that context.
        """
        if not self.training or self.dropout == 0.0 or self.config.sequence_parallel:
            return nullcontext()
        fork: AbstractContextManager[None] = get_cuda_rng_tracker().fork()
        return fork


def zigzag_positions(length: int, *, rank: int, ranks: int) -> Tensor:
    """Return the positions in the complete sequence of one context-parallel rank's `length` tokens, in order.

    `length` is even: two chunks of the sequence, as in `HostCoreAttention`.
    """
    half = length // 2
    early, late = rank * half, (2 * ranks - 1 - rank) * half
    return torch.cat([torch.arange(early, early + half), torch.arange(late, late + half)])


def host_layer_spec(config: TransformerConfig, *, num_experts: int | None = None) -> ModuleSpec:
    """Return the spec of one GPT layer, dense or with `num_experts` experts; `config` defines the rest.

    Raises:
        ValueError: `config` sets an option that the local layers would silently ignore.
    """
    reject_ignored(config)
    spec = get_gpt_layer_local_spec(
        num_experts=num_experts,
        moe_grouped_gemm=config.moe_grouped_gemm,
        qk_layernorm=config.qk_layernorm,
        multi_latent_attention=config.multi_latent_attention,
        normalization=config.normalization,
    )
    return _with_host_parts(spec, config)


def host_block_spec(
    config: TransformerConfig, *, vp_stage: int | None = None, pp_rank: int | None = None
) -> TransformerBlockSubmodules:
    """Return the specs of the GPT layers of one pipeline stage and its final norm.

    Dense and expert layers follow `config.moe_layer_freq`. Needs Megatron's parallel state unless `pp_rank` is given.

    Raises:
        ValueError: `config` sets an option that the local layers would silently ignore.
    """
    reject_ignored(config)
    block = get_gpt_decoder_block_spec(
        config,
        use_transformer_engine=False,
        normalization=config.normalization,
        vp_stage=vp_stage,
        pp_rank=pp_rank,
    )
    layers = [_with_host_parts(spec, config) for spec in block.layer_specs]
    return TransformerBlockSubmodules(layer_specs=layers, layer_norm=HostNorm)


def _with_host_parts(spec: ModuleSpec, config: TransformerConfig) -> ModuleSpec:
    """Replace components of a layer's spec in place; specs are new, and several layers may share one."""
    layer, attention = spec.submodules, spec.submodules.self_attention.submodules
    layer.input_layernorm = layer.pre_mlp_layernorm = HostNorm
    if config.softmax_type == "vanilla":
        attention.core_attention = HostCoreAttention
    for name in ("q_layernorm", "k_layernorm", "kv_layernorm"):
        if getattr(attention, name, IdentityOp) is not IdentityOp:
            setattr(attention, name, HostNorm)
    layer.sharded_state_dict_keys_map = stored_names(spec, config)
    return spec


def stored_names(spec: ModuleSpec, config: TransformerConfig) -> dict[str, str]:
    """Return the checkpoint names of a layer's norms, which Transformer Engine fuses with the following linear layers.

    Megatron's table for its local layers assumes dense layers without latent attention, so that checkpoints of all
    other layers would be incompatible with Transformer Engine's layers.
    """
    names = {} if has_experts(spec) else {"pre_mlp_layernorm.": "mlp.linear_fc1.layer_norm_"}
    if not config.multi_latent_attention:
        return {"input_layernorm.": "self_attention.linear_qkv.layer_norm_", **names}
    if config.qk_layernorm:
        for part in ("q", "kv"):
            names[f"self_attention.{part}_layernorm."] = f"self_attention.linear_{part}_up_proj.layer_norm_"
    return names


def has_experts(spec: ModuleSpec) -> bool:
    """Return whether the MLP of a layer's spec is a mixture of experts."""
    builder = spec.submodules.mlp
    return isinstance(builder, partial) and builder.func is MoELayer


def reject_ignored(config: TransformerConfig) -> None:
    """Reject options that Megatron's layers without Transformer Engine accept and ignore.

    Raises:
        ValueError: `config` sets such an option.
    """
    ignored = [name for name in _IGNORED_BY_LOCAL_SPEC if getattr(config, name)]
    if ignored:
        raise ValueError(
            f"model.{ignored[0]}: got True, which Megatron's layers without Transformer Engine silently ignore. "
            "Set it to False, or train on a GPU with Transformer Engine."
        )
