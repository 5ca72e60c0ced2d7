import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from mb_metrics import gpt_flops_per_token  # noqa: E402

LAYERS, HIDDEN, FFN, HEADS, GROUPS, HEAD, SEQ, VOCAB, BATCH = 2, 32, 48, 4, 2, 10, 16, 64, 3


class Layer(nn.Module):
    def __init__(self, *, gated):
        super().__init__()
        self.gated = gated
        self.query = nn.Linear(HIDDEN, HEADS * HEAD, bias=False)
        self.key_value = nn.Linear(HIDDEN, 2 * GROUPS * HEAD, bias=False)
        self.out = nn.Linear(HEADS * HEAD, HIDDEN, bias=False)
        self.up = nn.Linear(HIDDEN, FFN * (2 if gated else 1), bias=False)
        self.down = nn.Linear(FFN, HIDDEN, bias=False)

    def forward(self, hidden_BSH):
        query = self.query(hidden_BSH).view(BATCH, SEQ, HEADS, HEAD).transpose(1, 2)
        key, value = (
            part.view(BATCH, SEQ, GROUPS, HEAD).transpose(1, 2).repeat_interleave(HEADS // GROUPS, dim=1)
            for part in self.key_value(hidden_BSH).chunk(2, dim=-1)
        )
        scores = query @ key.transpose(2, 3)
        mixed = (scores.softmax(dim=-1) @ value).transpose(1, 2).reshape(BATCH, SEQ, HEADS * HEAD)
        hidden_BSH = hidden_BSH + self.out(mixed)
        up = self.up(hidden_BSH)
        if self.gated:
            gate, linear = up.chunk(2, dim=-1)
            up = gate.sigmoid() * linear
        return hidden_BSH + self.down(up)


@pytest.mark.parametrize("gated", [False, True])
def test_the_formula_is_what_torch_counts_while_the_model_runs(gated):
    model = nn.Sequential(
        nn.Embedding(VOCAB, HIDDEN),
        *(Layer(gated=gated) for _ in range(LAYERS)),
        nn.Linear(HIDDEN, VOCAB, bias=False),
    )
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros(BATCH, SEQ, dtype=torch.long)).sum().backward()
    formula = gpt_flops_per_token(
        num_layers=LAYERS,
        hidden_size=HIDDEN,
        ffn_hidden_size=FFN,
        num_attention_heads=HEADS,
        num_query_groups=GROUPS,
        kv_channels=HEAD,
        seq_length=SEQ,
        vocab_size=VOCAB,
        gated_mlp=gated,
        causal=False,
    )
    assert counter.get_total_flops() == BATCH * SEQ * formula.total
