import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mb_metrics import FlopsPerToken, gpt_flops_per_token

SHAPE = {
    "num_layers": 2,
    "hidden_size": 64,
    "ffn_hidden_size": 160,
    "num_attention_heads": 4,
    "seq_length": 32,
    "vocab_size": 96,
}


def test_the_parts_of_a_small_model():
    assert gpt_flops_per_token(**SHAPE, num_query_groups=2, gated_mlp=True) == FlopsPerToken(
        attention_linear=6 * 2 * (64 * 64 + 2 * 64 * 32 + 64 * 64),
        attention_core=6 * 2 * 32 * 64,
        mlp=6 * 2 * 3 * 64 * 160,
        logits=6 * 64 * 96,
        causal=True,
    )


def test_gpt3_agrees_with_the_closed_formula_of_the_megatron_paper():
    layers, width, seq, vocab = 96, 12288, 2048, 51200
    flops = gpt_flops_per_token(
        num_layers=layers,
        hidden_size=width,
        ffn_hidden_size=4 * width,
        num_attention_heads=96,
        seq_length=seq,
        vocab_size=vocab,
        causal=False,
    )
    # 96 B s l h^2 (1 + s/6h + V/16lh) with recomputation, which is 4 passes where we count 3, except the logits.
    body = 72 * layers * width**2 * (1 + seq / (6 * width))
    assert flops.total == pytest.approx(body + 6 * width * vocab)


@settings(deadline=None)
@given(causal=st.booleans(), seq_length=st.integers(1, 4096))
def test_causal_attention_counts_half_and_sets_the_flag(causal, seq_length):
    flops = gpt_flops_per_token(**SHAPE | {"seq_length": seq_length}, causal=causal)
    assert flops.attention_core == 12 * 2 * seq_length * 64 / (2 if causal else 1)
    assert flops.causal is causal


@pytest.mark.parametrize("name", [*SHAPE, "num_query_groups", "kv_channels"])
def test_sizes_must_be_positive(name):
    with pytest.raises(ValueError, match=r"must be (a )?positive"):
        gpt_flops_per_token(**SHAPE | {name: 0})
