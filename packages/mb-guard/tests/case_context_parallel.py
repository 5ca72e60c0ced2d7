"""Functions that run on ranks of `test_context_parallel.py`."""

from contextlib import nullcontext

import torch
from megatron.core import tensor_parallel
from tiny_gpt import LENGTH, batch, gpt, gradients, relative, start

import mb_guard


def masked(fault: str | None, tokens: int) -> tuple[float, float]:
    """Return the length of the gradient on two ranks relative to one rank, and the difference of both."""
    mask = torch.zeros(1, LENGTH)
    mask[:, :tokens] = 1
    whole = batch(mask)
    start()
    right = gradients(gpt(), [whole])
    with mb_guard.without(fault) if fault else nullcontext():
        start(context_parallel_size=2)
        found = gradients(gpt(context_parallel_size=2), [whole])
    name = "output_layer.weight"
    return float(found[name].norm() / right[name].norm()), relative(found, right)


def dropout_masks() -> list[float]:
    """Return a dropout mask of this context-parallel rank, from the generator of tensor-parallel regions."""
    start(context_parallel_size=2)
    tensor_parallel.model_parallel_cuda_manual_seed(1234, force_reset_rng=True)
    with tensor_parallel.get_cuda_rng_tracker().fork():
        return torch.nn.functional.dropout(torch.ones(64), 0.5).tolist()
