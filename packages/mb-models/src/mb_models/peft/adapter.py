"""Low-rank adapter of one linear layer. Shape letters: R rank of the adapter, I inputs and O outputs on this rank."""

from __future__ import annotations

import math
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any
from zlib import crc32

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

from mb_models.errors import PeftError

if TYPE_CHECKING:
    from mb_models.peft.config import LoRA


class Adapter(torch.nn.Module):
    """Low-rank update scale * B A x of one linear layer, or of one of the layers that are fused in it.

    `name` is that of the adapter in the complete model.
    """

    def __init__(self, linear: Any, *, section: LoRA, outputs: int, name: str) -> None:
        super().__init__()
        weight, partition = linear.weight, linear.partition
        self.row, self.sharded_output = partition.row, partition.sharded_output
        rank = rank_of(name, linear, section)
        self.scale = section.alpha / rank
        self.dropout = section.dropout
        self.group = partition.group
        # the dispatcher of experts communicates instead
        self.exchanges = not (partition.of_experts or partition.copied)
        self.scattered = partition.scattered and not partition.of_experts
        self.drops_output = section.dropout_position == "post"
        a_RI = torch.empty(rank, weight.shape[1], dtype=weight.dtype, device=weight.device)
        b_OR = torch.empty(outputs, rank, dtype=weight.dtype, device=weight.device)
        # A is sharded along the input in a row-parallel layer, B along the output in another one: there each rank
        # draws its own values; else all draw the same
        for matrix, method, dim, is_sharded in (
            (a_RI, section.lora_A_init_method, 1, self.row),
            (b_OR, section.lora_B_init_method, 0, self.sharded_output),
        ):
            shards = self.group.size() if is_sharded and self.group is not None else 1
            shard = self.group.rank() if shards > 1 else 0
            generator = None
            if partition.of_experts:
                # Ranks hold different experts, and adapters of different numbers of them: from the generators that
                # all share, experts of different ranks would start equal, and later replicated adapters unequal.
                seed = torch.initial_seed() ^ crc32(f"{name} {dim} {shard}".encode())
                generator = torch.Generator(matrix.device).manual_seed(seed)
            initialize(matrix, method, shards=shards, dim=dim, generator=generator)
        self.lora_a, self.lora_b = torch.nn.Parameter(a_RI), torch.nn.Parameter(b_OR)
        set_parallel_attributes(self.lora_a, linear, sharded=1 if self.row else None)
        set_parallel_attributes(self.lora_b, linear, sharded=0 if self.sharded_output else None)

    def forward(self, x: Tensor) -> Tensor:
        """Return the update of the layer's output; communicates R numbers per token if the layer communicates."""
        if not self.drops_output:
            x = self._dropped(x, varies=self.row)
        update = F.linear(self._exchange(F.linear(x, self.lora_a)), self.lora_b) * self.scale
        return self._dropped(update, varies=self.sharded_output) if self.drops_output else update

    def _dropped(self, values: Tensor, *, varies: bool) -> Tensor:
        """Return values after dropout; ranks that hold different parts of them (`varies`) draw differently."""
        if not (self.dropout and self.training):
            return values
        with get_cuda_rng_tracker().fork() if varies or self.scattered else nullcontext():
            return F.dropout(values, self.dropout)

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


def rank_of(name: str, linear: Any, section: LoRA) -> int:
    """Return the rank of the adapters of a layer, `name` in the complete model.

    Raises:
        PeftError: the rank of the section cannot be divided by the number of experts of a token.
    """
    if not section.normalize_moe_lora or "experts" not in name.split("."):
        return section.dim
    experts_per_token: int = linear.config.moe_router_topk
    if section.dim % experts_per_token:
        raise PeftError(
            f"peft.dim: {section.dim} is not a multiple of model.moe_router_topk={experts_per_token}, by which "
            "peft.normalize_moe_lora divides the rank of experts. Change peft.dim, or leave out "
            "peft.normalize_moe_lora."
        )
    return section.dim // experts_per_token


def initialize(
    weight: Tensor, method: str, *, shards: int, dim: int, generator: torch.Generator | None
) -> None:
    """Set the initial values of a matrix, or of one of `shards` shards along `dim`, by a name of the section.

    Scales follow from the size of the complete matrix, so that they do not depend on the parallelism. Without
    `generator`, values are Megatron's for shards, and otherwise the default generator's.
    """
    outputs, inputs = (size * (shards if number == dim else 1) for number, size in enumerate(weight.shape))
    with get_cuda_rng_tracker().fork() if shards > 1 and generator is None else nullcontext():
        if method == "zero":
            torch.nn.init.zeros_(weight)
        elif method == "normal":
            torch.nn.init.normal_(weight, std=0.2, generator=generator)
        elif method == "xavier":
            torch.nn.init.normal_(weight, std=math.sqrt(2 / (inputs + outputs)), generator=generator)
        else:
            bound = (
                math.sqrt(3.0) * torch.nn.init.calculate_gain("leaky_relu", math.sqrt(5)) / math.sqrt(inputs)
            )
            torch.nn.init.uniform_(weight, -bound, bound, generator=generator)


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
    if sharded is None and linear.partition.of_experts and linear.partition.group.size() > 1:
        # each rank of the experts' tensor-parallel group has the gradient of its shard of the other matrix only
        parameter.register_hook(partial(_summed, group=linear.partition.group))  # type: ignore[no-untyped-call]


def share_over_experts(parameter: torch.nn.Parameter, group: Any) -> None:
    """Keep a parameter of all experts of a layer equal on the ranks of a group: each has the sum of their gradients.

    Norms count it once, on the first rank.
    """
    parameter.is_of_all_experts = True  # type: ignore[attr-defined]
    if group.size() > 1:
        parameter.register_hook(partial(_summed, group=group))  # type: ignore[no-untyped-call]
        parameter.shared = group.rank() > 0  # type: ignore[attr-defined]


def _summed(gradient: Tensor, *, group: Any) -> Tensor:
    """Return the sum of a gradient over the ranks of a group."""
    total = gradient.clone()
    torch.distributed.all_reduce(total, group=group)
    return total
