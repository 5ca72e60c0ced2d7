"""Functions that run on a rank for the tests of the patches."""

import inspect
from contextlib import nullcontext

import torch
from megatron.core import parallel_state
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region
from megatron.core.tensor_parallel.layers import (
    LinearWithFrozenWeight,
    LinearWithGradAccumulationAndAsyncCommunication,
)

from mb_host.megatron.patches import PATCH_MARK, without


def linear_layers() -> tuple[bool, dict[str, float]]:
    """Return whether linear layers are patched, and the relative difference of each result without the patch."""
    frozen, trained = LinearWithFrozenWeight, LinearWithGradAccumulationAndAsyncCommunication
    with_patch, without_patch = _linear_results(frozen, trained), {}
    with without("onednn_products"):
        without_patch = _linear_results(frozen, trained)
    differences = {
        name: float((value - without_patch[name]).norm() / value.norm()) for name, value in with_patch.items()
    }
    return hasattr(frozen.forward, PATCH_MARK), differences


def _linear_results(frozen: type, trained: type) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    found = {}
    for kind, prefix in ((frozen, "frozen "), (trained, "")):
        hidden, weight = (torch.randn(size, generator=generator) for size in ((64, 4, 128), (192, 128)))
        hidden.requires_grad_()
        weight.requires_grad_(kind is trained)
        others = {"weight": weight, "gtp_remat_size": 1, "bias": None, "tp_group": None}
        others |= {"grad_output_buffer": None, "wgrad_deferral_limit": None}
        names = [*inspect.signature(inspect.unwrap(kind.forward)).parameters][2:]
        output = kind.apply(hidden, *(others.get(name, False) for name in names))
        output.backward(torch.randn(output.shape, generator=generator))
        found |= {f"{prefix}output": output.detach(), f"{prefix}input": hidden.grad}
        if kind is trained:
            found["weight"] = weight.grad
    return found


def unequal_parts(fault: str | None) -> tuple[list[float], list[float]]:
    """Gather one number of rank 0 and two of rank 1; return them and the gradient of their sum."""
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=2)
    group = parallel_state.get_tensor_model_parallel_group()
    part = torch.full((group.rank() + 1,), float(group.rank()), requires_grad=True)
    with without(fault) if fault else nullcontext():
        whole = gather_from_sequence_parallel_region(part, group=group, output_split_sizes=[1, 2])
        whole.sum().backward()
    return whole.tolist(), part.grad.tolist()
