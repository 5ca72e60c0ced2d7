"""Functions that run on ranks of `test_recomputation.py`."""

from contextlib import ExitStack
from typing import Any
from unittest import mock

import torch
from megatron.core import tensor_parallel
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


def size_of_a_returned_input() -> int:
    """Return the bytes that are left of the input of a function which returns it along with its result."""
    start()
    hidden = torch.randn(4, 4, requires_grad=True)
    residual = hidden * 1
    checkpoint = CheckpointWithoutOutput(False)
    doubled, _ = checkpoint.checkpoint(lambda rows: (rows * 2, rows), residual)
    checkpoint.discard_output_and_register_recompute(doubled @ hidden)
    return residual.untyped_storage().size()


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


class DeviceGenerator:
    """A generator whose handles share its state, as PyTorch's for CUDA do."""

    def __init__(self, state: torch.Generator) -> None:
        self.state = state
        self.manual_seed, self.get_state, self.set_state = state.manual_seed, state.get_state, state.set_state

    def graphsafe_get_state(self) -> "DeviceGenerator":
        return DeviceGenerator(self.state)

    def graphsafe_set_state(self, other: "DeviceGenerator") -> None:
        self.__init__(other.state)  # type: ignore[misc]

    def clone_state(self) -> "DeviceGenerator":
        return DeviceGenerator(self.state.clone_state())


def numbers(fault: str | None, graphs: bool, recomputed: bool) -> tuple[list[float], list[float], float]:
    """Return what a layer draws in its forward pass, and when it is recomputed, and a number that is drawn later.

    The layer is in the fork of a sequence-parallel block, and forks again.
    """
    start()
    device = DeviceGenerator(torch.Generator())
    drawn: list[list[float]] = []

    def draw() -> float:
        return float(torch.rand((), generator=device.state if graphs else None))

    def layer(hidden: torch.Tensor) -> torch.Tensor:
        first = draw()
        with tensor_parallel.get_cuda_rng_tracker().fork():
            second = draw()
        drawn.append([first, second, draw()])
        return hidden * 2

    with ExitStack() as stack:
        if fault:
            stack.enter_context(mb_guard.without(fault))
        if graphs:
            stack.enter_context(mock.patch.object(torch.cuda, "default_generators", [device]))
        tensor_parallel.model_parallel_cuda_manual_seed(
            1234, use_cudagraphable_rng=graphs, force_reset_rng=True
        )
        hidden = torch.ones(4, requires_grad=True)
        with tensor_parallel.get_cuda_rng_tracker().fork():
            draw()
            output = tensor_parallel.checkpoint(layer, False, hidden) if recomputed else layer(hidden)
            draw()
        output.sum().backward()
        with tensor_parallel.get_cuda_rng_tracker().fork():
            later = draw()
    tensor_parallel.model_parallel_cuda_manual_seed(1234, force_reset_rng=True)
    return drawn[0], drawn[-1], later
