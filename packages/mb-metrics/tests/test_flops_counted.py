"""The formulas of recurrent layers against what torch counts while they run as their papers define them."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from mb_metrics import model_flops_per_token  # noqa: E402

HIDDEN, SEQ, VOCAB, BATCH = 32, 16, 64, 3
STATE, INNER_HEADS, INNER_HEAD, STATE_GROUPS, CONVOLUTION = 6, 4, 10, 2, 4


def convolved(channels_BSC, kernel_CK):
    """Convolve each channel alone; by batched products, as torch counts a grouped convolution's gradient wrongly."""
    padded_BCS = nn.functional.pad(channels_BSC.transpose(1, 2), (CONVOLUTION - 1, 0))
    windows_CNK = padded_BCS.unfold(2, CONVOLUTION, 1).transpose(0, 1).flatten(1, 2)
    return (windows_CNK @ kernel_CK.unsqueeze(-1)).view(-1, BATCH, SEQ).permute(1, 2, 0)


class Mamba(nn.Module):
    """Mamba-2 as its paper defines it: a recurrence, one product a step."""

    def __init__(self):
        super().__init__()
        inner, conv = INNER_HEADS * INNER_HEAD, INNER_HEADS * INNER_HEAD + 2 * STATE_GROUPS * STATE
        self.sizes = [inner, conv, INNER_HEADS]
        self.enter = nn.Linear(HIDDEN, sum(self.sizes), bias=False)
        self.kernel = nn.Parameter(torch.ones(conv, CONVOLUTION))
        self.out = nn.Linear(inner, HIDDEN, bias=False)

    def forward(self, hidden_BSH):
        gate, mixed, step = self.enter(hidden_BSH).split(self.sizes, dim=-1)
        mixed = convolved(mixed, self.kernel).sigmoid()
        x, b, c = mixed.split([self.sizes[0], STATE_GROUPS * STATE, STATE_GROUPS * STATE], dim=-1)
        x = x.unflatten(-1, (INNER_HEADS, INNER_HEAD)) * step.sigmoid().unsqueeze(-1)
        b, c = (
            part.unflatten(-1, (STATE_GROUPS, STATE)).repeat_interleave(INNER_HEADS // STATE_GROUPS, dim=2)
            for part in (b, c)
        )
        state, outputs = torch.zeros(BATCH, INNER_HEADS, INNER_HEAD, STATE, requires_grad=True), []
        for now in range(SEQ):
            state = 0.9 * state + x[:, now].unsqueeze(-1) @ b[:, now].unsqueeze(-2)
            outputs.append(state @ c[:, now].unsqueeze(-1))
        scanned = torch.stack(outputs, dim=1).flatten(2)
        return self.out(scanned * gate.sigmoid())


class GatedDeltaNet(nn.Module):
    """A gated delta net as its paper defines it: a recurrence, three products a step."""

    keys, values = STATE_GROUPS * STATE, INNER_HEADS * INNER_HEAD

    def __init__(self):
        super().__init__()
        conv = 2 * self.keys + self.values
        self.sizes = [conv, self.values, 2 * INNER_HEADS]
        self.enter = nn.Linear(HIDDEN, sum(self.sizes), bias=False)
        self.kernel = nn.Parameter(torch.ones(conv, CONVOLUTION))
        self.out = nn.Linear(self.values, HIDDEN, bias=False)

    def forward(self, hidden_BSH):
        mixed, gate, strength = self.enter(hidden_BSH).split(self.sizes, dim=-1)
        mixed = convolved(mixed, self.kernel).sigmoid()
        query, key, value = mixed.split([self.keys, self.keys, self.values], dim=-1)
        query, key = (
            part.unflatten(-1, (STATE_GROUPS, STATE)).repeat_interleave(INNER_HEADS // STATE_GROUPS, dim=2)
            for part in (query, key)
        )
        value = value.unflatten(-1, (INNER_HEADS, INNER_HEAD))
        decay, rate = strength.sigmoid().unflatten(-1, (2, INNER_HEADS)).unbind(dim=2)
        state, outputs = torch.zeros(BATCH, INNER_HEADS, INNER_HEAD, STATE, requires_grad=True), []
        for now in range(SEQ):
            state = decay[:, now, :, None, None] * state
            known = (state @ key[:, now].unsqueeze(-1)).squeeze(-1)
            error = rate[:, now].unsqueeze(-1) * (value[:, now] - known)
            state = state + error.unsqueeze(-1) @ key[:, now].unsqueeze(-2)
            outputs.append(state @ query[:, now].unsqueeze(-1))
        return self.out(torch.stack(outputs, dim=1).flatten(2) * gate.sigmoid())


@pytest.mark.parametrize(("symbol", "layer"), [("M", Mamba), ("G", GatedDeltaNet)])
def test_the_recurrent_layers_of_a_hybrid_are_what_torch_counts(symbol, layer):
    model = nn.Sequential(nn.Embedding(VOCAB, HIDDEN), layer(), nn.Linear(HIDDEN, VOCAB, bias=False))
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros(BATCH, SEQ, dtype=torch.long)).sum().backward()
    formula = model_flops_per_token(
        {
            "hybrid_layer_pattern": symbol,
            "hidden_size": HIDDEN,
            "mamba_num_heads": INNER_HEADS,
            "mamba_head_dim": INNER_HEAD,
            "mamba_state_dim": STATE,
            "mamba_num_groups": STATE_GROUPS,
            "linear_num_key_heads": STATE_GROUPS,
            "linear_key_head_dim": STATE,
            "linear_num_value_heads": INNER_HEADS,
            "linear_value_head_dim": INNER_HEAD,
        },
        seq_length=SEQ,
        vocab_size=VOCAB,
    )
    assert counter.get_total_flops() / (BATCH * SEQ) == pytest.approx(formula.total)
