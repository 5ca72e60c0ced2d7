"""FLOPs of a vision-language model: torch's count for the encoder, shared by the tokens of a sequence."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402  (after importorskip)
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from mb_metrics import UnknownFlopsError, model_flops_per_token  # noqa: E402

HIDDEN, WIDTH, INNER, PROJECTION, PATCH, SIDE = 32, 24, 40, 20, 4, 16
LANGUAGE = {
    "num_layers": 2,
    "hidden_size": HIDDEN,
    "ffn_hidden_size": 48,
    "num_attention_heads": 4,
    "vocab_size": 64,
}
SEES = {
    **LANGUAGE,
    "vision_num_layers": 3,
    "vision_hidden_size": WIDTH,
    "vision_num_attention_heads": 2,
    "vision_ffn_hidden_size": INNER,
    "projector_hidden_size": PROJECTION,
    "patch_size": PATCH,
    "image_size": SIDE,
}


class Layer(nn.Module):
    """Full attention and an MLP, without norms."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, INNER), nn.GELU(), nn.Linear(INNER, WIDTH))

    def forward(self, seen):
        query, key, value = self.qkv(seen).unflatten(-1, (3, 2, WIDTH // 2)).permute(1, 2, 0, 3)
        seen = seen + self.out(((query @ key.mT).softmax(-1) @ value).permute(1, 0, 2).flatten(1))
        return seen + self.mlp(seen)


def test_an_image_costs_what_torch_counts():
    patches = nn.Conv2d(3, WIDTH, PATCH, stride=PATCH)
    layers = nn.Sequential(*(Layer() for _ in range(3)))
    projection = nn.Sequential(nn.Linear(WIDTH, PROJECTION), nn.GELU(), nn.Linear(PROJECTION, HIDDEN))
    with FlopCounterMode(display=False) as counter:
        projection(layers(patches(torch.rand(1, 3, SIDE, SIDE))[0].flatten(1).T)).sum().backward()
    counted = model_flops_per_token(SEES, seq_length=50)
    assert counted.parts["encoder"] * 50 == pytest.approx(counter.get_total_flops(), rel=1e-12)
    assert counted.total - counted.encoder == model_flops_per_token(LANGUAGE, seq_length=50).total


def test_each_packed_sequence_has_an_image():
    alone, packed = (model_flops_per_token(SEES, seq_length=lengths).encoder for lengths in (20, [20, 20]))
    assert alone == packed


def test_a_size_that_is_missing_is_named():
    with pytest.raises(UnknownFlopsError, match="vision_hidden_size"):
        model_flops_per_token({**SEES, "vision_hidden_size": None}, seq_length=50)
