"""Torch substitute for Transformer Engine's linear layers of all experts of a rank, in Megatron's own grouped MLP.

Shape letters: T tokens of all local experts, sorted by expert; I inputs and O outputs on this rank.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType, ModuleType
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor


class GroupedLinear(torch.nn.Module):
    """Linear layers of the local experts, with their weights as `weight0`, `weight1`, ... [O, I].

    It has the attributes that Megatron and adapters read from the classes of the names below. Initial values and the
    attributes of parameters are those of Megatron's layer of one expert.
    """

    column: ClassVar[bool]
    """Outputs are split over the tensor-parallel ranks of experts, not inputs."""

    def __init__(  # noqa: PLR0913 - the arguments of Megatron's layers
        self,
        num_gemms: int,
        input_size: int,
        output_size: int,
        *,
        config: Any,
        init_method: Callable[[Tensor], Any],
        bias: bool,
        skip_bias_add: bool,
        is_expert: bool,
        tp_comm_buffer_name: str | None = None,
        pg_collection: Any,
        name: str | None = None,
    ) -> None:
        """Build the layers of `num_gemms` experts. The name of the layer and that of a buffer have no effect."""
        super().__init__()
        from megatron.core.tensor_parallel.layers import (  # noqa: PLC0415 - only where Megatron is imported
            ColumnParallelLinear,
            RowParallelLinear,
        )

        layer: Any = partial(ColumnParallelLinear, gather_output=False)
        if not self.column:
            layer = partial(RowParallelLinear, input_is_parallel=True)
        self.config, self.num_gemms, self.use_bias = config, num_gemms, bias
        self.te_return_bias = bias and skip_bias_add
        self._pg_collection, self._tp_group = pg_collection, pg_collection.expt_tp
        for number in range(num_gemms):
            built = layer(
                input_size,
                output_size,
                config=config,
                init_method=init_method,
                bias=bias,
                skip_bias_add=True,
                is_expert=is_expert,
                tp_group=self._tp_group,
            )
            self.register_parameter(f"weight{number}", built.weight)
            if bias:
                self.register_parameter(f"bias{number}", built.bias)
        self.out_features, self.in_features = built.weight.shape

    def forward(self, x: Tensor, m_splits: Sequence[int]) -> tuple[Tensor, list[Tensor] | None]:
        """Return the outputs, [T, O], of inputs [T, I], and the biases of the experts if they are still to be added.

        `m_splits` has the number of tokens of each expert.
        """
        biases = [getattr(self, f"bias{number}", None) for number in range(self.num_gemms)]
        added = [None] * self.num_gemms if self.te_return_bias else biases
        parts = zip(torch.split(x, list(m_splits)), added, strict=True)
        outputs = [
            F.linear(part, getattr(self, f"weight{number}"), bias)
            for number, (part, bias) in enumerate(parts)
        ]
        return torch.cat(outputs), biases if self.te_return_bias else None  # type: ignore[return-value]

    def backward_dw(self) -> None:
        """Do nothing: the backward pass has computed the gradients of the weights."""

    def sharded_state_dict(
        self,
        prefix: str = "",
        sharded_offsets: tuple[Any, ...] = (),
        metadata: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Return the weights of each expert as Megatron's sharded tensors, with the keys of single experts."""
        from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint  # noqa: PLC0415 - as above

        groups, given = self._pg_collection, dict(metadata or {})
        state: dict[str, Any] = {}
        for number in range(self.num_gemms):
            expert = groups.ep.rank() * self.num_gemms + number
            offset = (len(sharded_offsets), expert, groups.ep.size() * self.num_gemms)
            single = given.get("singleton_local_shards", False)
            values = {
                kind: getattr(self, f"{kind}{number}") for kind in ("weight", "bias")[: 1 + self.use_bias]
            }
            sharded = make_sharded_tensors_for_checkpoint(
                values,
                f"{expert}.{prefix}" if single else prefix,
                {"weight": 0, "bias": 0} if self.column else {"weight": 1},
                sharded_offsets if single else (*sharded_offsets, offset),
                tp_group=self._tp_group,
                dp_cp_group=given["dp_cp_group"],
            )
            for tensor, kind in zip(sharded.values(), values, strict=True):
                tensor.replica_id = (*tensor.replica_id[:2], groups.expt_dp.rank())
                state[f"{prefix}{kind}{number}"] = tensor
        return state


class TEColumnParallelGroupedLinear(GroupedLinear):
    """Substitute for Megatron's class of this name."""

    column = True


class TERowParallelGroupedLinear(GroupedLinear):
    """Substitute for Megatron's class of this name."""

    column = False


def stand_in_for_grouped_experts(backends: ModuleType) -> None:
    """Make Megatron's local specs build its grouped MLP if `moe_grouped_gemm` is set."""
    provider = backends.__dict__["LocalSpecProvider"]
    one_by_one = provider.grouped_mlp_modules

    def grouped_mlp_modules(self: Any, moe_use_grouped_gemm: bool) -> Any:
        if not moe_use_grouped_gemm:
            return one_by_one(self, moe_use_grouped_gemm)
        from megatron.core.transformer.moe.experts import (  # noqa: PLC0415 - as above
            GroupedMLPSubmodules,
            TEGroupedMLP,
        )

        linears = GroupedMLPSubmodules(
            linear_fc1=TEColumnParallelGroupedLinear,
            linear_fc2=TERowParallelGroupedLinear,
            activation_func=self.activation_func(),
        )
        return partial(TEGroupedMLP, submodules=linears)

    provider.grouped_mlp_modules = grouped_mlp_modules


STAND_INS: Mapping[str, Callable[[ModuleType], None]] = MappingProxyType(
    {"megatron.core.models.backends": stand_in_for_grouped_experts}
)
"""Megatron module -> function that adds what it lacks without Transformer Engine, right after its import."""
