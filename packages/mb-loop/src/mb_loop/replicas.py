"""Are the weights of all replicas the same bits? Needs torch."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from mb_loop.errors import ReplicaMismatchError
from mb_loop.hooks import ForwardPreHooks
from mb_loop.losses import LossGroups


@runtime_checkable
class ExpertGroups(Protocol):
    """The group that replicates experts; Megatron's ProcessGroupCollection fits."""

    @property
    def expt_dp(self) -> ProcessGroup:
        """Ranks that hold the same experts."""


_CHUNK = 1 << 22
_ODD = 0x9E3779B97F4A7C15 - (1 << 64)  # as a signed number; odd, so that each change of one element is seen
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def weight_digest(weight: Tensor) -> Tensor:
    """Return 64 bits that depend on every bit of the tensor and on its place (int64 scalar, on the device).

    Whole-number arithmetic, so exact in any order. One differing element is always seen, several with a chance of
    2^-64 to cancel out. No synchronisation; the memory of 4 million elements at a time.
    """
    flat = weight.detach().contiguous().reshape(-1)
    bits = flat.view(_BITS[flat.element_size()])
    digest = torch.zeros((), dtype=torch.int64, device=weight.device)
    for start in range(0, bits.numel(), _CHUNK):
        part = bits[start : start + _CHUNK].to(torch.int64)
        places = torch.arange(start, start + part.numel(), device=part.device, dtype=torch.int64)
        digest += (part * (2 * places * _ODD + _ODD)).sum()
    return digest


def different_weights(model: Sequence[Any], *, dense: ProcessGroup, expert: ProcessGroup | None) -> list[str]:
    """Return the names of weights that are not the same on all ranks of their group. Collective; one host wait.

    Args:
        model: the chunks; parameters whose attribute `allreduce` is False are experts', as in Megatron.
        dense: ranks that hold the same dense weights.
        expert: ranks that hold the same experts; None: there are none.
    """
    different = []
    for group, wanted in ((dense, False), (expert, True)):
        names, weights = _named(model, experts=wanted)
        if group is None or not weights:
            continue
        digests = torch.stack([weight_digest(weight) for weight in weights])
        lowest, highest = digests.clone(), digests.clone()
        torch.distributed.all_reduce(lowest, op=torch.distributed.ReduceOp.MIN, group=group)
        torch.distributed.all_reduce(highest, op=torch.distributed.ReduceOp.MAX, group=group)
        same = (lowest == highest).tolist()
        different += [name for name, equal in zip(names, same, strict=True) if not equal]
    return different


class ReplicaCheck:
    """Compares the weights of replicas at an interval.

    Args:
        model: the chunks.
        interval: steps; None: never.
        groups: dense weights are the same over its dp_cp, experts over its `expt_dp` if it has one.
        hooks: switched off around the check, so that the parameters are whole.
        any_rank: whether a flag is set on any rank of the world.
    """

    def __init__(
        self,
        model: Sequence[Any],
        *,
        interval: int | None,
        groups: LossGroups | None,
        hooks: ForwardPreHooks,
        any_rank: Callable[[bool], bool],
    ) -> None:
        self._model = model
        self._interval = interval if groups is not None else None
        self._groups = groups
        self._hooks = hooks
        self._any_rank = any_rank

    def at_start(self, step: int) -> None:
        """Check once before the first step, if an interval is set. Collective over the world then.

        Raises:
            ReplicaMismatchError: as below.
        """
        if self._interval and self._groups is not None:
            self._check(step, self._groups)

    def __call__(self, step: int) -> None:
        """Check when the interval divides the step. Collective over the world then.

        Raises:
            ReplicaMismatchError: on all ranks, if replicas differ anywhere.
        """
        if self._interval and self._groups is not None and step % self._interval == 0:
            self._check(step, self._groups)

    def _check(self, step: int, groups: LossGroups) -> None:
        expert = groups.expt_dp if isinstance(groups, ExpertGroups) else None
        with self._hooks.paused():
            names = different_weights(self._model, dense=groups.dp_cp, expert=expert)
        if self._any_rank(bool(names)):
            shown = (
                f"{', '.join(names[:5])} ({len(names)} in all)"
                if names
                else "none of this rank's, another rank's"
            )
            raise ReplicaMismatchError(
                f"weights after step {step}: replicas hold different bits ({shown}), because an update went another "
                "way on one of them: a faulty device, or code that is random per rank. Resume from a step "
                "that passed the check, without the node that differs."
            )


def _named(model: Sequence[Any], *, experts: bool) -> tuple[list[str], list[Tensor]]:
    found = [
        (name, weight)
        for name, weight in _all(model)
        if experts is (getattr(weight, "allreduce", True) is False)
    ]
    return [name for name, _ in found], [weight for _, weight in found]


def _all(model: Sequence[Any]) -> Iterator[tuple[str, Tensor]]:
    for number, chunk in enumerate(model):
        for name, weight in chunk.named_parameters():
            yield (name if len(model) == 1 else f"chunk {number}: {name}"), weight
