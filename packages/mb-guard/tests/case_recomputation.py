"""Functions that run on ranks of `test_recomputation.py`."""

from contextlib import ExitStack
from typing import Any
from unittest import mock

import torch
from megatron.core.tensor_parallel import random as megatron_random
from megatron.core.tensor_parallel.random import CheckpointWithoutOutput
from tiny_gpt import start

import mb_guard


def backward(recomputed: bool, *, fp8: Any = False) -> list[torch.Tensor]:
    """Return the gradients of a norm and a layer that saves the output of the norm."""
    torch.manual_seed(0)
    hidden, inner, outer = (torch.randn(4, 4, requires_grad=True) for _ in range(3))

    def norm(rows: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.layer_norm(rows @ inner, (4,))

    checkpoint = CheckpointWithoutOutput(fp8)
    normed = checkpoint.checkpoint(norm, hidden) if recomputed else norm(hidden)
    output = normed @ outer
    if recomputed:
        checkpoint.discard_output_and_register_recompute(output)
        assert normed.untyped_storage().size() == 0
    output.square().sum().backward()
    return [each.grad for each in (hidden, inner, outer)]


def without_transformer_engine(fault: str | None) -> list[bool] | str:
    """Return whether each gradient is that without recomputation, or the error."""
    start()
    with ExitStack() as stack:
        if fault:
            stack.enter_context(mb_guard.without(fault))
        try:
            return [torch.equal(*pair) for pair in zip(backward(True), backward(False), strict=True)]
        except NameError as error:
            return str(error)


def without_compiler(fault: str | None) -> list[bool] | str:
    """Return the same on a machine with a GPU where nothing can be compiled."""
    start()
    failing = mock.Mock(side_effect=RuntimeError("Ninja is required to load C++ extensions"))
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(megatron_random, "load_inline", failing))
        stack.enter_context(mock.patch("torch.cuda.is_available", return_value=True))
        if fault:
            stack.enter_context(mb_guard.without(fault))
        try:
            return [
                torch.equal(*pair) for pair in zip(backward(True, fp8=None), backward(False), strict=True)
            ]
        except RuntimeError as error:
            return str(error)
