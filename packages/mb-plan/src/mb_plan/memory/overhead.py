"""Estimate of the device memory that is not that of tensors: CUDA, NCCL, and fragmentation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mb_plan.shape.fields import read_field

CUDA_BYTES = 640 * 2**20
"""Context of the process, modules of PyTorch, cuBLAS and cuDNN, and their workspaces. nvidia-smi shows 500 to 700 MiB
for a process of PyTorch that has computed one layer on an H100."""
NCCL_BYTES = 256 * 2**20
"""Buffers and channels of one communicator over NVLink and network, with NCCL's defaults: 200 to 400 MiB."""
FRAGMENTED = 0.05
"""Part of the activations that torch's allocator holds in addition, because blocks of other sizes are free."""
FRAGMENTED_EXPANDABLE = 0.02
"""The same with expandable segments."""
ALLOCATOR_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""Variables that torch reads. The second is the name since torch 2.9."""
_GROUPS = ("tensor", "pipeline", "context", "expert")


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """Estimated memory of one rank in addition to that of its tensors, in bytes."""

    cuda: int
    nccl: int
    fragmentation: int
    graphs: int = 0
    """Gradients of weights that CUDA graphs of modules keep."""

    @property
    def total(self) -> int:
        """Sum of all parts."""
        return self.cuda + self.nccl + self.fragmentation + self.graphs


def estimate_overhead(
    sections: Mapping[str, object],
    *,
    data_parallel: int | None,
    activations: int | None,
    graph_gradients: int = 0,
) -> Overhead:
    """Estimate the overhead of the rank with the most memory.

    Args:
        sections: "model", and "env_vars" with the settings of the allocator.
        data_parallel: Number of replicas, if known.
        activations: Bytes of the activations, if counted.
        graph_gradients: Bytes of the gradients that CUDA graphs of modules keep.
    """
    model, variables = sections["model"], sections.get("env_vars")
    sizes = [read_field(model, f"{name}_model_parallel_size") or 1 for name in _GROUPS]
    groups = sum(size > 1 for size in (*sizes, data_parallel or 1))
    known = (
        {str(name): str(value) for name, value in variables.items()} if isinstance(variables, Mapping) else {}
    )
    share = FRAGMENTED_EXPANDABLE if _expandable_segments(known) else FRAGMENTED
    return Overhead(
        cuda=CUDA_BYTES,
        nccl=groups * NCCL_BYTES,
        fragmentation=round(share * (activations or 0)),
        graphs=graph_gradients,
    )


def _expandable_segments(env: Mapping[str, str]) -> bool:
    """Return True if a variable enables expandable segments. torch ignores spaces, and accepts only "True"."""
    return any(
        "expandable_segments:True" in env.get(name, "").replace(" ", "").split(",")
        for name in ALLOCATOR_VARIABLES
    )
