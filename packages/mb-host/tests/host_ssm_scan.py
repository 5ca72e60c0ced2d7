"""Scans compared to recurrences and to Megatron's implementation; functions that run on a rank."""

import torch
from megatron.core.ssm.gated_delta_net import torch_chunk_gated_delta_rule
from torch.nn.functional import normalize

from mb_host.megatron.kernels import (
    TELinear,
    causal_conv1d,
    chunk_gated_delta_rule,
    mamba_chunk_scan_combined,
    mamba_split_conv1d_scan_combined,
    repeat_groups,
)
from mb_host.megatron.ssm_scan import gated_delta_scan, state_space_scan, unit_length

DOUBLE = {"dtype": torch.float64}


def largest_differences(scan, recurrence, inputs, *, chunk):
    """Return the largest differences of outputs and gradients from the recurrence."""
    outputs = [scan(*inputs, chunk=chunk), recurrence(*inputs)]
    weight = torch.randn_like(outputs[0])
    gradients = [torch.autograd.grad((output * weight).sum(), inputs) for output in outputs]
    return (
        (outputs[0] - outputs[1]).abs().max().item(),
        max((one - other).abs().max().item() for one, other in zip(*gradients, strict=True)),
    )


def state_space_recurrence(values, steps, decay, into, out_of):
    state, outputs = values.new_zeros(values.size(0), values.size(2), into.size(3), values.size(3)), []
    for token in range(values.size(1)):
        kept = (steps[:, token] * decay).exp()[..., None, None]
        written = into[:, token, :, :, None] * (steps[:, token, :, None] * values[:, token])[:, :, None]
        state = state * kept + written
        outputs.append((out_of[:, token, :, :, None] * state).sum(2))
    return torch.stack(outputs, dim=1)


def gated_delta_recurrence(query, key, value, log_decay, beta):
    state, outputs = value.new_zeros(value.size(0), value.size(2), key.size(3), value.size(3)), []
    for token in range(value.size(1)):
        state = state * log_decay[:, token, :, None, None].exp()
        seen = (key[:, token, :, :, None] * state).sum(2)
        correction = beta[:, token, :, None] * (value[:, token] - seen)
        state = state + key[:, token, :, :, None] * correction[:, :, None]
        outputs.append((query[:, token, :, :, None] * state).sum(2))
    return torch.stack(outputs, dim=1)


def state_space(length, chunk):
    torch.manual_seed(0)
    values = torch.randn(2, length, 4, 8, **DOUBLE).requires_grad_()
    steps = torch.rand(2, length, 4, **DOUBLE).requires_grad_()
    decay = (-8 * torch.rand(4, **DOUBLE)).requires_grad_()
    into, out_of = (torch.randn(2, length, 4, 6, **DOUBLE).requires_grad_() for _ in range(2))
    inputs = (values, steps, decay, into, out_of)
    return largest_differences(state_space_scan, state_space_recurrence, inputs, chunk=chunk)


def gated_delta(length, chunk):
    torch.manual_seed(0)
    query, key = (
        normalize(torch.randn(2, length, 3, 6, **DOUBLE), dim=-1).requires_grad_() for _ in range(2)
    )
    value = torch.randn(2, length, 3, 8, **DOUBLE).requires_grad_()
    log_decay = (-2 * torch.rand(2, length, 3, **DOUBLE)).requires_grad_()
    beta = torch.rand(2, length, 3, **DOUBLE).requires_grad_()
    inputs = (query, key, value, log_decay, beta)
    return largest_differences(gated_delta_scan, gated_delta_recurrence, inputs, chunk=chunk)


def packed_mamba():
    """Return the difference of packs from their sequences in rows, and the gradient of one by the one before it."""
    torch.manual_seed(0)
    heads, width, states, lengths = 3, 4, 2, (5, 1, 7)
    mixed = heads * width + 2 * states
    weights = [torch.randn(*size, **DOUBLE) for size in ((mixed, 4), (mixed,), (heads,))]
    weights += [-torch.rand(heads, **DOUBLE), torch.randn(heads, **DOUBLE)]
    numbers = torch.arange(3).repeat_interleave(torch.tensor(lengths)).expand(2, -1)

    def layer(tokens, **options):
        return mamba_split_conv1d_scan_combined(tokens, *weights, 4, headdim=width, **options)

    tokens = torch.randn(2, sum(lengths), heads * width + mixed + heads, **DOUBLE).requires_grad_()
    packed = layer(tokens, seq_idx=numbers)
    alone = [layer(part) for part in tokens.split(lengths, dim=1)]
    gradient = torch.autograd.grad(packed[:, 5:].sum(), tokens)[0][:, :5]
    return (packed - torch.cat(alone, dim=1)).abs().max().item(), gradient.abs().max().item()


def against_megatrons_gated_delta_rule():
    torch.manual_seed(0)
    query, key = (normalize(torch.randn(2, 100, 3, 16), dim=-1) for _ in range(2))
    value, log_decay, beta = torch.randn(2, 100, 3, 8), -torch.rand(2, 100, 3), torch.rand(2, 100, 3)
    theirs, _ = torch_chunk_gated_delta_rule(query, key, value, log_decay, beta)
    ours, _ = chunk_gated_delta_rule(query, key, value, log_decay, beta)
    return (ours - theirs).abs().max().item()


def short_vectors_in_float16():
    """Return the gradient through the normalisation of a vector whose squares underflow in float16."""
    vector = torch.full((4,), 1e-4, dtype=torch.float16, requires_grad=True)
    unit_length(vector)[0].backward()
    return vector.grad.tolist()


def unsupported(case):
    """Call a substitute with an argument that only the kernel supports."""
    ones = torch.ones(1, 4, 2, 2)
    if case == "linear":
        TELinear(
            input_size=2,
            output_size=2,
            parallel_mode="column",
            config=None,
            init_method=None,
            bias=False,
            skip_bias_add=False,
            skip_weight_param_allocation=False,
            is_expert=False,
        )
    elif case == "activation":
        mamba_split_conv1d_scan_combined(ones[0], *[ones] * 5, 2, activation="relu")
    elif case == "state of Mamba":
        mamba_chunk_scan_combined(
            *[ones] * 5,
            2,
            D=ones,
            z=None,
            dt_bias=ones,
            dt_softplus=True,
            return_final_states=True,
            initial_states=None,
        )
    elif case == "pattern":
        repeat_groups(ones, "a b", g=1, n=2, r=2)
    elif case == "state":
        chunk_gated_delta_rule(*[ones] * 3, *[ones[..., 0]] * 2, output_final_state=True)
    else:
        causal_conv1d(ones[0], ones[0, 0], activation="silu", cu_seqlens=ones)
