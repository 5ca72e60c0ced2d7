"""One pair of matrices for the adapters of a layer whose parts are a single tensor elsewhere.

Shape letters: R sum of the ranks, I inputs, O outputs of all parts.
"""

from typing import Any

import torch

PARTS = {"qkv": ("q", "k", "v"), "glu": ("gate", "up")}
"""Form of a fused layer -> its adapters in canonical LoRA."""


def joined_pair(layer: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return A [R, I] and B [O, R] with the update of all parts, one below the other; B is block-diagonal.

    A part without adapters has zeros, so that R is the same for all layers of a kind.
    """
    if "main" in layer.adapter:
        return layer.adapter["main"].lora_a, layer.adapter["main"].lora_b
    like = next(iter(layer.adapter.values()))
    empty_a = torch.zeros_like(like.lora_a)
    pairs = [
        (layer.adapter[name].lora_a, layer.adapter[name].lora_b)
        if name in layer.adapter
        else (empty_a, like.lora_b.new_zeros(size, like.lora_b.shape[1]))
        for name, size in layer.part_sizes.items()
    ]
    joined: torch.Tensor = torch.block_diag(*[b for _, b in pairs])  # type: ignore[no-untyped-call]
    return torch.cat([a for a, _ in pairs]), joined
