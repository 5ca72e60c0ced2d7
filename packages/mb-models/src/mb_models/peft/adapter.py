"""Low-rank adapter of one linear layer. Shape letters: R rank of the adapter, I inputs and O outputs on this rank."""

import math
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.tensor_parallel import (
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
    get_cuda_rng_tracker,
    reduce_from_tensor_model_parallel_region,
    reduce_scatter_to_sequence_parallel_region,
)
from torch import Tensor

from mb_models.peft.config import LoRA


class Adapter(torch.nn.Module):
    """Low-rank update scale * B A x of one linear layer, or of one of the layers that are fused in it."""

    def __init__(self, linear: Any, *, section: LoRA, outputs: int) -> None:
        super().__init__()
        weight, partition = linear.weight, linear.partition
        self.row = partition.row
        self.scale = section.alpha / section.dim
        self.dropout = section.dropout
        self.group = partition.group
        self.exchanges = not partition.of_experts  # the dispatcher of experts communicates instead
        self.scattered = partition.scattered and self.exchanges
        a_RI = torch.empty(section.dim, weight.shape[1], dtype=weight.dtype, device=weight.device)
        b_OR = torch.zeros(outputs, section.dim, dtype=weight.dtype, device=weight.device)
        # A is sharded along the input in a row-parallel layer: each rank draws its own values; else all draw the same
        with get_cuda_rng_tracker().fork() if self.row else nullcontext():
            torch.nn.init.kaiming_uniform_(a_RI, a=math.sqrt(5))
        self.lora_a, self.lora_b = torch.nn.Parameter(a_RI), torch.nn.Parameter(b_OR)
        set_parallel_attributes(self.lora_a, linear, sharded=1 if self.row else None)
        set_parallel_attributes(self.lora_b, linear, sharded=None if self.row else 0)

    def forward(self, x: Tensor) -> Tensor:
        """Return the update of the layer's output; communicates R numbers per token if the layer communicates."""
        if self.dropout and self.training:
            with get_cuda_rng_tracker().fork() if self.row or self.scattered else nullcontext():
                x = F.dropout(x, self.dropout)
        return F.linear(self._exchange(F.linear(x, self.lora_a)), self.lora_b) * self.scale

    def delta(self) -> Tensor:
        """Return the update of the weight, [O, I]."""
        return (self.lora_b @ self.lora_a) * self.scale

    def _exchange(self, hidden: Tensor) -> Tensor:
        if not self.exchanges:
            return hidden
        if self.row:
            exchange = (
                reduce_scatter_to_sequence_parallel_region
                if self.scattered
                else reduce_from_tensor_model_parallel_region
            )
        else:
            exchange = (
                gather_from_sequence_parallel_region
                if self.scattered
                else copy_to_tensor_model_parallel_region
            )
        exchanged: Tensor = exchange(hidden, group=self.group)
        return exchanged


def set_parallel_attributes(parameter: torch.nn.Parameter, linear: Any, *, sharded: int | None) -> None:
    """Set the attributes that describe a parameter's sharding to Megatron's optimizer, gradient norm and DDP."""
    marked: Any = parameter
    marked.tensor_model_parallel = sharded is not None
    marked.partition_dim, marked.partition_stride = -1 if sharded is None else sharded, 1
    # replicated, with a part of the sequence as input: finalize_model_grads sums the gradients over the ranks
    marked.sequence_parallel = (
        linear.partition.scattered and sharded is None and not linear.partition.of_experts
    )
    if hasattr(linear.weight, "allreduce"):
        marked.allreduce = linear.weight.allreduce
