"""Reduction of the losses of microbatches to one scalar per name. Imports torch."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from mb_loop.errors import LossShapeError


class LossGroups(Protocol):
    """Process group that losses are averaged over, such as in Megatron's ProcessGroupCollection."""

    @property
    def dp_cp(self) -> ProcessGroup:
        """Data-parallel and context-parallel ranks."""


def sum_and_count(microbatches: Sequence[Mapping[str, Tensor]]) -> Tensor:
    """Sum the losses of all microbatches into rows [sum, count], one per name (K x 2, float32). No synchronisation.

    Losses of two elements are [sum, count] and are added. Losses of one element have a count of one per microbatch, so
    that the result is their average.

    Raises:
        LossShapeError: a loss has another number of elements or is not a tensor, or microbatches have different names.
    """
    names = list(microbatches[0])
    for number, losses in enumerate(microbatches):
        if list(losses) != names:
            raise LossShapeError(
                f"losses: microbatch {number} reports {list(losses)}, the first one {names}, so there is no average of "
                "each. Report the same names in the same order for all microbatches."
            )
    return torch.stack([_row(name, [losses[name] for losses in microbatches]) for name in microbatches[0]])


def _row(name: str, values: Sequence[Tensor]) -> Tensor:
    for value in values:
        if not isinstance(value, Tensor):
            raise LossShapeError(
                f"loss {name!r}: is of type {type(value).__name__}, but losses remain on the device until "
                "they are averaged. Report the tensor itself, such as loss.detach(), without item()."
            )
    stacked = torch.stack([value.detach().float().reshape(-1) for value in values])
    if stacked.shape[1] == 2:
        return stacked.sum(dim=0)
    if stacked.shape[1] == 1:
        return torch.cat([stacked.sum(dim=0), stacked.new_full((1,), len(values))])
    raise LossShapeError(
        f"loss {name!r}: has {stacked.shape[1]} elements, but only a scalar and [sum, count] can be averaged. "
        "Report one of these from the loss function."
    )


def reduce_losses(
    microbatches: Sequence[Mapping[str, Tensor]], *, groups: LossGroups | None
) -> dict[str, Tensor]:
    """Average losses over the microbatches of a step and over the ranks of `groups.dp_cp`.

    One all-reduce for all names; no synchronisation with the host. An empty sequence (a pipeline stage without losses)
    returns an empty dict without a collective. All ranks of the group must report the same names in the same order.
    """
    if not microbatches or not microbatches[0]:
        return {}
    rows = sum_and_count(microbatches)
    if groups is not None:
        torch.distributed.all_reduce(rows, group=groups.dp_cp)
    values = rows[:, 0] / rows[:, 1]
    return dict(zip(microbatches[0], values.unbind(), strict=True))
