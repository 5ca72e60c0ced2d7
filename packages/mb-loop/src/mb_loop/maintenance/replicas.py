"""Bitwise comparison of the weights of data-parallel replicas. Imports torch."""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from mb_loop.collectives import any_rank
from mb_loop.errors import ReplicaMismatchError
from mb_loop.step.hooks import ForwardPreHooks
from mb_loop.step.losses import LossGroups


@runtime_checkable
class ExpertGroups(Protocol):
    """Process group that replicates experts, such as in Megatron's ProcessGroupCollection."""

    @property
    def expt_dp(self) -> ProcessGroup:
        """Ranks that hold the same experts."""


_CHUNK = 1 << 22
# as a signed integer; odd, so that a change of one element always changes the digest
_ODD = 0x9E3779B97F4A7C15 - (1 << 64)
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def weight_digest(weight: Tensor) -> Tensor:
    """Return a 64-bit digest of the bits and positions of all elements (int64 scalar, on the device).

    Integer arithmetic, so the result does not depend on the order of summation. A single differing element always
    changes the digest; several differences cancel with probability 2^-64. No synchronisation. Temporary memory for 4
    million elements.
    """
    flat = weight.detach().contiguous().reshape(-1)
    bits = flat.view(_BITS[flat.element_size()])
    digest = torch.zeros((), dtype=torch.int64, device=weight.device)
    for start in range(0, bits.numel(), _CHUNK):
        part = bits[start : start + _CHUNK].to(torch.int64)
        positions = torch.arange(start, start + part.numel(), device=part.device, dtype=torch.int64)
        digest += (part * (2 * positions * _ODD + _ODD)).sum()
    return digest


def different_weights(model: Sequence[Any], *, dense: ProcessGroup, expert: ProcessGroup | None) -> list[str]:
    """Return the names of weights that differ between ranks of their group. Collective; one host synchronisation.

    Args:
        model: model chunks; parameters whose attribute `allreduce` is False belong to experts, as in Megatron.
        dense: ranks that hold the same dense weights.
        expert: ranks that hold the same experts; None: there are none.
    """
    different = []
    for group, experts in ((dense, False), (expert, True)):
        names, weights = _named(model, experts=experts)
        if group is None or not weights:
            continue
        digests = torch.stack([weight_digest(weight) for weight in weights])
        # Two reductions of one number per weight, in place of a gather from all replicas: equal if lowest is highest.
        lowest, highest = digests.clone(), digests.clone()
        torch.distributed.all_reduce(lowest, op=torch.distributed.ReduceOp.MIN, group=group)
        torch.distributed.all_reduce(highest, op=torch.distributed.ReduceOp.MAX, group=group)
        same = (lowest == highest).tolist()
        different += [name for name, equal in zip(names, same, strict=True) if not equal]
    return different


class ReplicaCheck:
    """Comparison of the weights of replicas.

    Args:
        model: model chunks of this rank.
        groups: dense weights are compared over its `dp_cp` group, experts over its `expt_dp` group, if present.
        hooks: disabled during the check, so that all parameters are gathered.
    """

    def __init__(self, model: Sequence[Any], *, groups: LossGroups, hooks: ForwardPreHooks) -> None:
        self._model = model
        self._groups = groups
        self._hooks = hooks

    def __call__(self, step: int) -> None:
        """Compare after `step` finished steps. Collective over the world.

        Raises:
            ReplicaMismatchError: on all ranks, if replicas differ anywhere.
        """
        groups = self._groups
        expert = groups.expt_dp if isinstance(groups, ExpertGroups) else None
        with self._hooks.paused():
            names = different_weights(self._model, dense=groups.dp_cp, expert=expert)
        # Over the world: a rank whose replicas agree would wait in its next collective for the ranks that raise.
        if any_rank(bool(names)):
            shown = (
                f"{', '.join(names[:5])} ({len(names)} in all)"
                if names
                else "none of this rank's, another rank's"
            )
            raise ReplicaMismatchError(
                f"weights after step {step}: replicas hold different bits ({shown}), because an update had another "
                "result on one of them: a faulty device, or code that is random per rank. Resume from a step "
                "that passed the check, without the node that differs."
            )


def is_expert(weight: Tensor) -> bool:
    """Return whether a weight belongs to an expert: Megatron marks them by `allreduce=False`."""
    return getattr(weight, "allreduce", True) is False


def _named(model: Sequence[Any], *, experts: bool) -> tuple[list[str], list[Tensor]]:
    named_weights = [(name, weight) for name, weight in _all(model) if experts is is_expert(weight)]
    return [name for name, _ in named_weights], [weight for _, weight in named_weights]


def _all(model: Sequence[Any]) -> Iterator[tuple[str, Tensor]]:
    for number, chunk in enumerate(model):
        for name, weight in chunk.named_parameters():
            yield (name if len(model) == 1 else f"chunk {number}: {name}"), weight
