"""Norms that Megatron's layers lack: with weights around zero, without biases, over all heads, and not fused.

Shape suffixes: S sequence, B microbatch, N heads on this tensor-parallel rank, D channels of a head.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from megatron.core.extensions.transformer_engine import (
    TEColumnParallelLinear,
    TELayerNormColumnParallelLinear,
    TENorm,
)
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor
from torch.distributed.nn.functional import all_reduce
from torch.nn import functional

from mb_models.errors import ModelConfigError


class ZeroCentredRMSNorm(torch.nn.RMSNorm):
    """RMSNorm that stores its weight minus one, and computes in float32."""

    def reset_parameters(self) -> None:
        """Set the weight to zero."""
        torch.nn.init.zeros_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised input, in its type."""
        weight = 1.0 + self.weight.float()
        return functional.rms_norm(x.float(), self.normalized_shape, weight, self.eps).type_as(x)


class ZeroCentredLayerNorm(torch.nn.LayerNorm):
    """LayerNorm that stores its weight minus one, and computes in float32."""

    def reset_parameters(self) -> None:
        """Set the weight and the bias to zero."""
        torch.nn.init.zeros_(self.weight)
        torch.nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised input, in its type."""
        weight, bias = 1.0 + self.weight.float(), self.bias.float()
        return functional.layer_norm(x.float(), self.normalized_shape, weight, bias, self.eps).type_as(x)


class BiaslessLayerNorm(torch.nn.LayerNorm):
    """LayerNorm without a bias, which computes in float32."""

    def __init__(
        self, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, **_unused: object
    ) -> None:
        super().__init__(hidden_size, eps=eps, bias=False)
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised input, in its type."""
        weight = self.weight.float()
        return functional.layer_norm(x.float(), self.normalized_shape, weight, None, self.eps).type_as(x)


_ZERO_CENTRED = {"RMSNorm": ZeroCentredRMSNorm, "LayerNorm": ZeroCentredLayerNorm}


def zero_centred_norm(
    config: TransformerConfig, hidden_size: int, eps: float = 1e-5, **_unused: object
) -> torch.nn.Module:
    """Build a norm over the last dimension that stores its weight minus one, of the kind of the configuration."""
    norm: torch.nn.Module = _ZERO_CENTRED[config.normalization](hidden_size, eps=eps)
    for parameter in norm.parameters():
        parameter.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]
    return norm


def separate_norms(block: TransformerBlockSubmodules) -> None:
    """Replace Transformer Engine's linear layers that contain the norm before them, in place, by both as layers.

    There are such layers before attention and in a dense MLP. The names in checkpoints stay those of the fused norms.
    """
    for spec in block.layer_specs:
        layer, attention = spec.submodules, spec.submodules.self_attention.submodules
        stored_names = dict(layer.sharded_state_dict_keys_map)
        if getattr(attention, "linear_qkv", None) is TELayerNormColumnParallelLinear:
            attention.linear_qkv, layer.input_layernorm = TEColumnParallelLinear, TENorm
            stored_names["input_layernorm."] = "self_attention.linear_qkv.layer_norm_"
        mlp: Any = getattr(layer.mlp, "keywords", {}).get("submodules")
        if getattr(mlp, "linear_fc1", None) is TELayerNormColumnParallelLinear:
            linears = replace(mlp, linear_fc1=TEColumnParallelLinear)
            layer.mlp, layer.pre_mlp_layernorm = partial(layer.mlp, submodules=linears), TENorm
            stored_names["pre_mlp_layernorm."] = "mlp.linear_fc1.layer_norm_"
        layer.sharded_state_dict_keys_map = stored_names


def replace_norms(block: TransformerBlockSubmodules, norm: Any) -> None:
    """Replace all norms of a stage's layers, and its final norm, in place."""
    block.layer_norm = norm
    for spec in block.layer_specs:
        layer, attention = spec.submodules, spec.submodules.self_attention.submodules
        layer.input_layernorm = layer.pre_mlp_layernorm = norm
        for name in ("q_layernorm", "k_layernorm"):
            if getattr(attention, name) is not IdentityOp:
                setattr(attention, name, norm)


class AllHeadsRMSNorm(torch.nn.Module):
    """RMSNorm of queries or keys over all heads of a layer, which tensor-parallel ranks share.

    Each rank has the weight of all heads, because Megatron sums the gradients of these norms over the ranks, and uses
    that of its own. Computes in float32.

    Raises:
        ModelConfigError: the ranks cannot share the heads.
    """

    def __init__(
        self,
        config: TransformerConfig,
        hidden_size: int,
        eps: float = 1e-5,
        *,
        heads: int,
        tp_group: torch.distributed.ProcessGroup,
    ) -> None:
        super().__init__()
        if heads % tp_group.size():
            raise ModelConfigError(
                [
                    f"model.qk_layernorm_scope: is all_heads with {heads} heads of queries or keys, which "
                    f"{tp_group.size()} tensor-parallel ranks cannot share. Use fewer ranks, or the scope head."
                ]
            )
        self.eps, self.tp_group = eps, tp_group
        self.offset = 1.0 if config.layernorm_zero_centered_gamma else 0.0
        start = torch.full((heads * hidden_size,), 1.0 - self.offset, dtype=config.params_dtype)
        self.weight = torch.nn.Parameter(start)

    def forward(self, x_SBND: Tensor) -> Tensor:
        """Return the normalised heads of this rank; collective over the tensor-parallel group."""
        local_SBC, channels = x_SBND.float().flatten(-2), self.weight.numel()
        squares = local_SBC.square().sum(-1, keepdim=True)
        if self.tp_group.size() > 1:
            squares = all_reduce(squares, group=self.tp_group)  # type: ignore[no-untyped-call] # torch has no types
        weight = self.weight.chunk(self.tp_group.size())[self.tp_group.rank()].float() + self.offset
        normalised = local_SBC * torch.rsqrt(squares / channels + self.eps) * weight
        return normalised.view(x_SBND.shape).type_as(x_SBND)
