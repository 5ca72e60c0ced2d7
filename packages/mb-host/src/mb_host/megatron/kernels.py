"""Torch substitutes for GPU kernels of Megatron's state-space, gated-delta and expert layers.

Megatron imports these names from packages that need a GPU (mamba-ssm, flash-linear-attention, their dependency einops,
Transformer Engine) and does not build the layers without them. With substitutes under these names, Megatron's layers
run unchanged. Letters of shapes are those of `ssm_scan.py`.
"""

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType, ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mb_host.megatron.ssm_scan import (
    causal_convolution,
    gated_delta_scan,
    gated_scan,
    split_conv_scan,
    unit_length,
)

GATED_DELTA_CHUNK = 64
"""Tokens per chunk of the gated-delta scan, as in flash-linear-attention. The result depends on it only by rounding."""


class GatedRMSNorm(torch.nn.Module):
    """RMSNorm over groups of `group_size` channels, optionally gated; substitute for mamba-ssm's class."""

    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-5,
        group_size: int | None = None,
        norm_before_gate: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.eps, self.norm_before_gate = eps, norm_before_gate
        self.group_size = group_size or hidden_size
        self.weight = torch.nn.Parameter(torch.ones(hidden_size, device=device, dtype=dtype))

    def forward(self, inputs: Tensor, gate: Tensor | None = None) -> Tensor:
        """Return the normalised inputs, [..., hidden_size], multiplied by SiLU of the gate before or after the norm."""
        dtype = torch.promote_types(inputs.dtype, torch.float32)
        values: Tensor = inputs.to(dtype)
        if gate is not None and not self.norm_before_gate:
            values = values * F.silu(gate.to(dtype))
        groups: Tensor = values.unflatten(  # type: ignore[no-untyped-call]
            -1, (-1, self.group_size)
        )
        scale = torch.rsqrt(groups.square().mean(-1, keepdim=True) + self.eps)
        values = (groups * scale).flatten(-2) * self.weight.to(dtype)
        if gate is not None and self.norm_before_gate:
            values = values * F.silu(gate.to(dtype))
        return values.to(inputs.dtype)


class TELinear(torch.nn.Module):
    """Linear layer of which every tensor-parallel rank has all weights; substitute for the class of this name."""

    def __init__(  # noqa: PLR0913 - the arguments of Megatron's layers
        self,
        input_size: int,
        output_size: int,
        *,
        parallel_mode: str,
        config: Any,
        init_method: Callable[[Tensor], Any],
        bias: bool,
        skip_bias_add: bool,
        skip_weight_param_allocation: bool,
        is_expert: bool,
        name: str | None = None,
    ) -> None:
        """Build the layer.

        Raises:
            ValueError: Weights are split over ranks, belong to an expert, or are not the layer's own.
        """
        super().__init__()
        if parallel_mode != "duplicated" or skip_bias_add or skip_weight_param_allocation or is_expert:
            raise ValueError(
                f"TELinear: parallel_mode={parallel_mode!r}, skip_bias_add={skip_bias_add}, "
                f"skip_weight_param_allocation={skip_weight_param_allocation}, is_expert={is_expert} "
                "is not supported, because each rank has and adds all weights. Train on a GPU."
            )
        self.config, self.use_bias, self.te_return_bias = config, bias, False
        self._tp_group = None
        self.weight = torch.nn.Parameter(torch.empty(output_size, input_size, dtype=torch.float32))
        self.bias = torch.nn.Parameter(torch.zeros(output_size, dtype=torch.float32)) if bias else None
        if config.perform_initialization:
            init_method(self.weight)
        for parameter in self.parameters():
            parameter.data = parameter.data.to(config.params_dtype)
            parameter.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, inputs: Tensor) -> tuple[Tensor, None]:
        """Return the outputs, [..., output_size], and no bias that is still to be added."""
        return F.linear(inputs, self.weight, self.bias), None


def mamba_split_conv1d_scan_combined(  # noqa: PLR0913 - the kernel's arguments
    zxbcdt: Tensor,
    conv1d_weight: Tensor,
    conv1d_bias: Tensor,
    dt_bias: Tensor,
    A: Tensor,
    D: Tensor,
    chunk_size: int,
    seq_idx: Tensor | None = None,
    activation: str = "silu",
    headdim: int | None = None,
    ngroups: int = 1,
    norm_before_gate: bool = True,
) -> Tensor:
    """Substitute for mamba-ssm's kernel of this name, as Megatron's mixer calls it; see `split_conv_scan`.

    `zxbcdt`, [B, L, D], holds the outputs of the input projection; the result is [B, L, H*P].

    Convolution and state start at zero where `seq_idx`, [B, L], the number of the sequence of each token, changes.
    `norm_before_gate` has no effect, because Megatron's mixer does not use the norm of the kernel.

    Raises:
        ValueError: The activation is not SiLU.
    """
    if activation not in ("silu", "swish"):
        raise ValueError(
            f"mamba_split_conv1d_scan_combined: activation={activation!r} is not supported, because this scan computes "
            "SiLU only. Train on a GPU with mamba-ssm."
        )

    def scan(tokens_BLD: Tensor) -> Tensor:
        return split_conv_scan(
            tokens_BLD,
            conv1d_weight,
            conv1d_bias,
            dt_bias,
            A,
            D,
            chunk=min(chunk_size, tokens_BLD.size(1)),
            head_width=headdim or D.size(1),
            groups=ngroups,
        )

    if seq_idx is None:
        return scan(zxbcdt)
    lengths = (torch.unique_consecutive(row, return_counts=True)[1].tolist() for row in seq_idx)
    rows = zip(torch.split(zxbcdt, 1), lengths, strict=True)
    return torch.cat(
        [torch.cat([scan(each) for each in torch.split(row, sizes, dim=1)], dim=1) for row, sizes in rows]
    )


def mamba_chunk_scan_combined(  # noqa: PLR0913 - the kernel's arguments
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    chunk_size: int,
    D: Tensor,
    z: Tensor | None,
    dt_bias: Tensor,
    dt_softplus: bool,
    return_final_states: bool,
    initial_states: Tensor | None,
) -> Tensor:
    """Substitute for mamba-ssm's kernel of this name, as Megatron's mixer calls it; see `gated_scan`.

    Returns [B, L, H, P], the shape of `x`.

    Raises:
        ValueError: A state is passed or requested, or the steps are used without softplus.
    """
    if initial_states is not None or return_final_states or not dt_softplus:
        raise ValueError(
            f"mamba_chunk_scan_combined: return_final_states={return_final_states}, dt_softplus={dt_softplus}, "
            f"initial_states {'not given' if initial_states is None else 'given'}, because this scan computes complete "
            "sequences from a zero state. Train, or generate text with the whole prompt."
        )
    chunk = min(chunk_size, x.size(1))
    return gated_scan(x, dt, A, B, C, D, step_bias_H=dt_bias, gate_BLHP=z, chunk=chunk).to(x.dtype)


def chunk_gated_delta_rule(  # noqa: PLR0913 - the kernel's arguments
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, None]:
    """Substitute for flash-linear-attention's kernel of this name; see `gated_delta_scan`.

    Returns [B, L, H, P], the shape of `v`, and no final state.

    Raises:
        ValueError: The sequences are packed, or a state is passed or requested.
    """
    if cu_seqlens is not None or initial_state is not None or output_final_state:
        raise ValueError(
            f"chunk_gated_delta_rule: cu_seqlens {'given' if cu_seqlens is not None else 'not given'}, initial_state "
            f"{'given' if initial_state is not None else 'not given'}, output_final_state={output_final_state}, "
            "because this scan computes complete sequences from a zero state. Train without packing."
        )
    dtype = torch.promote_types(q.dtype, torch.float32)
    query, key = (
        unit_length(each.to(dtype)) if use_qk_l2norm_in_kernel else each.to(dtype) for each in (q, k)
    )
    output = gated_delta_scan(
        query * (q.size(-1) ** -0.5 if scale is None else scale),
        key,
        v.to(dtype),
        g.to(dtype),
        beta.to(dtype),
        chunk=min(GATED_DELTA_CHUNK, q.size(1)),
    )
    return output.to(q.dtype), None


def causal_conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, None]:
    """Substitute for flash-linear-attention's convolution: [B, L, D] with a filter [D, W], then SiLU.

    Raises:
        ValueError: The sequences are packed, a state is passed or requested, or the activation is not SiLU.
    """
    if cu_seqlens is not None or initial_state is not None or output_final_state or activation != "silu":
        raise ValueError(
            f"causal_conv1d: activation={activation!r}, output_final_state={output_final_state}, cu_seqlens "
            f"{'not given' if cu_seqlens is None else 'given'}, initial_state "
            f"{'not given' if initial_state is None else 'given'}, because it computes SiLU and complete sequences "
            "only. Train without packing."
        )
    return causal_convolution(x, weight, bias), None


def rearrange(tensor: Tensor, pattern: str, **sizes: int) -> Tensor:
    """Substitute for einops' function of this name: split, drop (1), reorder and join dimensions.

    `rearrange(x, "l b (h p) -> b l h p", p=8)` splits the last dimension; at most one size per group may be omitted.
    """
    before, after = (
        [each.strip("()").split() for each in re.findall(r"\([^)]*\)|\S+", side)]
        for side in pattern.split("->")
    )
    for dim in reversed(range(len(before))):
        if len(before[dim]) > 1:
            tensor = tensor.unflatten(  # type: ignore[no-untyped-call]
                dim, [sizes.get(name, -1) for name in before[dim]]
            )
    names = [name for group in before for name in group]
    for dim in reversed(range(len(names))):
        if names[dim] == "1":
            tensor = tensor.squeeze(dim)
            del names[dim]
    tensor = tensor.permute([names.index(name) for group in after for name in group])
    for dim, group in enumerate(after):
        if len(group) > 1:
            tensor = tensor.flatten(dim, dim + len(group) - 1)
    return tensor


def repeat_groups(tensor: Tensor, pattern: str, *, g: int, n: int, r: int) -> Tensor:
    """Substitute for einops' `repeat`, for the only pattern in Megatron's mixer: repeat each group r times.

    Raises:
        ValueError: The pattern is another one.
    """
    if pattern != "l b (g n) -> l b (g r n)":
        raise ValueError(
            f"repeat_groups: pattern {pattern!r} is not supported; only groups of the last dimension are repeated. "
            "Install einops."
        )
    groups: Tensor = tensor.unflatten(-1, (g, n))  # type: ignore[no-untyped-call]
    return groups.repeat_interleave(r, dim=-2).flatten(-2)


def stand_in_for_context_parallel(module: ModuleType) -> None:
    """Add the function of einops to Megatron's `mamba_context_parallel`; no effect if einops is installed."""
    if not module.__dict__["HAVE_EINOPS"]:
        module.__dict__.update(HAVE_EINOPS=True, repeat=repeat_groups)


def stand_in_for_mamba(mixer: ModuleType) -> None:
    """Add the names that Megatron's `mamba_mixer` could not import."""
    names = mixer.__dict__
    if not names["HAVE_EINOPS"]:
        names.update(HAVE_EINOPS=True, rearrange=rearrange)
    if names["HAVE_MAMBA_SSM"]:
        return
    shard = names["make_sharded_tensors_for_checkpoint"]

    class ExtendedRMSNorm(GatedRMSNorm):
        """Norm with a sharded state dict; the weight is split over tensor-parallel ranks."""

        tp_group: Any  # set by the mixer

        def sharded_state_dict(
            self,
            prefix: str = "",
            sharded_offsets: tuple[Any, ...] = (),
            metadata: Mapping[str, Any] | None = None,
        ) -> Any:
            """Return the weight as Megatron's sharded tensor."""
            return shard(
                self.state_dict(prefix="", keep_vars=True),
                prefix,
                {"weight": 0},
                sharded_offsets,
                tp_group=self.tp_group,
                dp_cp_group=(metadata or {})["dp_cp_group"],
            )

    names.update(
        HAVE_MAMBA_SSM=True,
        ExtendedRMSNorm=ExtendedRMSNorm,
        mamba_split_conv1d_scan_combined=mamba_split_conv1d_scan_combined,
        mamba_chunk_scan_combined=mamba_chunk_scan_combined,
        _check_mamba_sequence_packing_support=lambda for_inference_not_training=True: (True, None),
    )


def stand_in_for_gated_delta(common: ModuleType) -> None:
    """Add the names that Megatron's gated-delta layers could not import."""
    names = common.__dict__
    if not names["HAVE_FLA"]:
        names.update(
            HAVE_FLA=True,
            l2norm=unit_length,
            causal_conv1d=causal_conv1d,
            chunk_gated_delta_rule=chunk_gated_delta_rule,
        )


def stand_in_for_latent_experts(layer: ModuleType) -> None:
    """Add the linear layers around latent experts that Megatron's `moe_layer` could not import."""
    names = layer.__dict__
    if not names["HAVE_TE"]:
        names.update(HAVE_TE=True, TELinear=TELinear)


STAND_INS: Mapping[str, Callable[[ModuleType], None]] = MappingProxyType(
    {
        "megatron.core.ssm.gated_delta_net.common": stand_in_for_gated_delta,
        "megatron.core.ssm.mamba_context_parallel": stand_in_for_context_parallel,
        "megatron.core.ssm.mamba_mixer": stand_in_for_mamba,
        "megatron.core.transformer.moe.moe_layer": stand_in_for_latent_experts,
    }
)
"""Megatron module -> function that adds missing names to it, right after its import."""
