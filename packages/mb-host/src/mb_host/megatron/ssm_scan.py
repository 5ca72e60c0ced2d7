"""State-space and gated-delta scans in torch, computed chunk by chunk, as replacements for GPU kernels.

Shape suffixes: B sequences, L tokens, H heads, P channels of a value, N channels of a state, key or query, G groups of
heads that share inputs and outputs, C chunks of Q tokens.

Half-precision inputs are computed in float32, as in the kernels; float64 inputs in float64.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def state_space_scan(
    values_BLHP: Tensor, steps_BLH: Tensor, decay_H: Tensor, in_BLHN: Tensor, out_BLHN: Tensor, *, chunk: int
) -> Tensor:
    """Return y, [B, L, H, P], with y_t = out_t S_t and S_t = exp(steps_t decay) S_{t-1} + steps_t in_t values_t.

    The state starts at zero. Exact for any chunk size: within a chunk, all pairs of tokens are computed at once (Q x
    Q); between chunks, only states are carried over. Source: Dao and Gu, "Transformers are SSMs" (2024), section 6.

    Args:
        values_BLHP: inputs.
        steps_BLH: step sizes, positive.
        decay_H: decay rate of each head, negative.
        in_BLHN: input projection of each token (B of Mamba).
        out_BLHN: output projection of each token (C of Mamba).
        chunk: tokens per chunk; need not divide the sequence length.
    """
    length = values_BLHP.size(1)
    log_decays_BLH = steps_BLH * decay_H
    written_BLHP = values_BLHP * steps_BLH.unsqueeze(-1)
    values, log_decays, keys, queries = (
        _chunked(each, chunk) for each in (written_BLHP, log_decays_BLH, in_BLHN, out_BLHN)
    )
    cumulative_BHCQ = log_decays.squeeze(-1).cumsum(-1)
    decay_BHCQQ = _pairwise_decay(cumulative_BHCQ)
    inside = (queries @ keys.mT * decay_BHCQQ) @ values
    to_end_BHCQ1 = (cumulative_BHCQ[..., -1:] - cumulative_BHCQ).exp().unsqueeze(-1)
    added_BHCNP = (keys * to_end_BHCQ1).mT @ values
    state_BHNP = torch.zeros_like(added_BHCNP[:, :, 0])
    before = []
    for index in range(added_BHCNP.size(2)):
        before.append(state_BHNP)
        state_BHNP = (
            state_BHNP * cumulative_BHCQ[:, :, index, -1, None, None].exp() + added_BHCNP[:, :, index]
        )
    across = (queries * cumulative_BHCQ.exp().unsqueeze(-1)) @ torch.stack(before, dim=2)
    return _unchunked(inside + across, length)


def gated_delta_scan(
    query_BLHN: Tensor,
    key_BLHN: Tensor,
    value_BLHP: Tensor,
    log_decay_BLH: Tensor,
    beta_BLH: Tensor,
    *,
    chunk: int,
) -> Tensor:
    """Return o, [B, L, H, P], with o_t = query_t S_t, where the state is corrected towards values at keys.

    S_t = S' + key_t beta_t (value_t - key_t S') with S' = exp(log_decay_t) S_{t-1}; the state [N, P] starts at zero.
    Within a chunk the corrections beta (value - key S') of all tokens solve one unit-triangular system. Source: Yang,
    Kautz and Hatamizadeh, "Gated Delta Networks" (2024), section 3.3.

    Args:
        query_BLHN: queries, already scaled.
        key_BLHN: keys.
        value_BLHP: values.
        log_decay_BLH: logarithm of the decay of the state at each token, not positive.
        beta_BLH: strength of the correction, 0 to 1.
        chunk: tokens per chunk; need not divide the sequence length.
    """
    length = value_BLHP.size(1)
    queries, keys, values, log_decays, betas = (
        _chunked(each, chunk) for each in (query_BLHN, key_BLHN, value_BLHP, log_decay_BLH, beta_BLH)
    )
    cumulative_BHCQ = log_decays.squeeze(-1).cumsum(-1)
    decay_BHCQQ = _pairwise_decay(cumulative_BHCQ)
    from_start_BHCQ1 = cumulative_BHCQ.exp().unsqueeze(-1)
    to_end_BHCQ1 = (cumulative_BHCQ[..., -1:] - cumulative_BHCQ).exp().unsqueeze(-1)
    system = (betas * (keys @ keys.mT) * decay_BHCQQ).tril(-1)  # the solver takes the diagonal as ones
    wanted, seen = (
        torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
        for right in (betas * values, betas * from_start_BHCQ1 * keys)
    )
    scores = queries @ keys.mT * decay_BHCQQ
    state_BHNP = keys.new_zeros(*keys.shape[:2], keys.size(-1), values.size(-1))
    outputs = []
    for index in range(keys.size(2)):
        here = (slice(None), slice(None), index)
        corrections = wanted[here] - seen[here] @ state_BHNP
        outputs.append((queries[here] * from_start_BHCQ1[here]) @ state_BHNP + scores[here] @ corrections)
        carried = state_BHNP * from_start_BHCQ1[here][..., -1:, :]
        state_BHNP = carried + (keys[here] * to_end_BHCQ1[here]).mT @ corrections
    return _unchunked(torch.stack(outputs, dim=2), length)


def split_conv_scan(  # noqa: PLR0913 - the parts of a layer
    projected_BLD: Tensor,
    conv_weight_DW: Tensor,
    conv_bias_D: Tensor,
    step_bias_H: Tensor,
    decay_H: Tensor,
    skip: Tensor,
    *,
    chunk: int,
    head_width: int,
    groups: int,
) -> Tensor:
    """Return the gated output of a Mamba 2 layer, [B, L, H*P], from the output of its input projection.

    The projection contains, in this order, the gate, the values, `in` and `out` of each group, and the steps. Values,
    `in` and `out` go through a causal convolution over the last W tokens and SiLU.

    Args:
        projected_BLD: output of the input projection.
        conv_weight_DW: convolution filter of each channel.
        conv_bias_D: convolution bias.
        step_bias_H: added to the steps before softplus.
        decay_H: see `state_space_scan`.
        skip: weight of the skip connection of each head, [H] or [H, P].
        chunk: see `state_space_scan`.
        head_width: channels P per head.
        groups: groups of heads that share `in` and `out`.
    """
    heads, inner = decay_H.size(0), decay_H.size(0) * head_width
    states = (conv_weight_DW.size(0) - inner) // (2 * groups)
    gate, mixed, steps_BLH = torch.split(projected_BLD, [inner, inner + 2 * groups * states, heads], dim=-1)
    convolved = causal_convolution(mixed, conv_weight_DW, conv_bias_D)
    values, into, out_of = torch.split(convolved, [inner, groups * states, groups * states], dim=-1)
    output_BLHP = gated_scan(
        _unflatten(values, -1, (heads, head_width)),
        steps_BLH,
        decay_H,
        _unflatten(into, -1, (groups, states)),
        _unflatten(out_of, -1, (groups, states)),
        skip,
        step_bias_H=step_bias_H,
        gate_BLHP=_unflatten(gate, -1, (heads, head_width)),
        chunk=chunk,
    )
    return output_BLHP.flatten(-2).to(projected_BLD.dtype)


def gated_scan(  # noqa: PLR0913 - the parts of a layer
    values_BLHP: Tensor,
    steps_BLH: Tensor,
    decay_H: Tensor,
    in_BLGN: Tensor,
    out_BLGN: Tensor,
    skip: Tensor,
    *,
    step_bias_H: Tensor,
    gate_BLHP: Tensor | None,
    chunk: int,
) -> Tensor:
    """Return the scan of values with its skip connection, times SiLU of the gate, [B, L, H, P] in at least float32.

    Args:
        values_BLHP: see `state_space_scan`.
        steps_BLH: step sizes before their bias and softplus.
        decay_H: see `state_space_scan`.
        in_BLGN: input projection of each group of heads.
        out_BLGN: output projection of each group of heads.
        skip: weight of the skip connection of each head, [H] or [H, P].
        step_bias_H: added to the steps before softplus.
        gate_BLHP: gate; None: there is none.
        chunk: see `state_space_scan`.
    """
    dtype, repeats = _compute_dtype(values_BLHP), decay_H.size(0) // in_BLGN.size(2)
    values = values_BLHP.to(dtype)
    in_BLHN, out_BLHN = (each.to(dtype).repeat_interleave(repeats, dim=2) for each in (in_BLGN, out_BLGN))
    steps = F.softplus(steps_BLH.to(dtype) + step_bias_H.to(dtype))
    scanned = state_space_scan(values, steps, decay_H.to(dtype), in_BLHN, out_BLHN, chunk=chunk)
    skip_HP = skip.to(dtype) if skip.dim() == 2 else skip.to(dtype).unsqueeze(-1)
    output = scanned + values * skip_HP
    return output if gate_BLHP is None else output * F.silu(gate_BLHP.to(dtype))


def unit_length(vectors: Tensor, dim: int = -1, eps: float = 1e-6) -> Tensor:
    """Divide `vectors` by their norm along `dim`, in at least float32: squares underflow in float16."""
    values = vectors.to(_compute_dtype(vectors))
    return (values * torch.rsqrt(values.square().sum(dim, keepdim=True) + eps)).to(vectors.dtype)


def _compute_dtype(tensor: Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def causal_convolution(mixed_BLD: Tensor, weight_DW: Tensor, bias_D: Tensor | None) -> Tensor:
    """Return SiLU of the convolution of each channel, [B, L, D], over its last W tokens, zero-padded at the start."""
    padded_BDL = F.pad(mixed_BLD.mT, (weight_DW.size(-1) - 1, 0))
    bias = None if bias_D is None else bias_D.to(mixed_BLD.dtype)
    weight = weight_DW.unsqueeze(1).to(mixed_BLD.dtype)
    return F.silu(F.conv1d(padded_BDL, weight, bias, groups=weight_DW.size(0))).mT


def _chunked(tensor: Tensor, chunk: int) -> Tensor:
    """Split [B, L, H] (X = 1) or [B, L, H, X] into chunks [B, H, C, Q, X], zero-padded at the end."""
    four_dims = tensor if tensor.dim() == 4 else tensor.unsqueeze(-1)
    padded = F.pad(four_dims, (0, 0, 0, 0, 0, -four_dims.size(1) % chunk))
    return _unflatten(padded, 1, (-1, chunk)).permute(0, 3, 1, 2, 4)


def _unflatten(tensor: Tensor, dim: int, sizes: tuple[int, int]) -> Tensor:
    unflattened: Tensor = tensor.unflatten(dim, sizes)  # type: ignore[no-untyped-call]
    return unflattened


def _unchunked(tensor_BHCQP: Tensor, length: int) -> Tensor:
    return tensor_BHCQP.permute(0, 2, 3, 1, 4).flatten(1, 2)[:, :length]


def _pairwise_decay(cumulative_BHCQ: Tensor) -> Tensor:
    """Return the decay from each earlier token (column) to each token (row), zero for later columns."""
    size = cumulative_BHCQ.size(-1)
    later = torch.ones(size, size, dtype=torch.bool, device=cumulative_BHCQ.device).triu(1)
    return (
        (cumulative_BHCQ.unsqueeze(-1) - cumulative_BHCQ.unsqueeze(-2))
        .masked_fill(later, float("-inf"))
        .exp()
    )
