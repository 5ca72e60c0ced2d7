"""From the losses of microbatches to one scalar per name. Needs torch."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from mb_loop.errors import LossShapeError


class LossGroups(Protocol):
    """The process group that losses are averaged over; Megatron's ProcessGroupCollection fits."""

    @property
    def dp_cp(self) -> ProcessGroup:
        """Data-parallel and context-parallel ranks together."""


def sum_and_count(microbatches: Sequence[Mapping[str, Tensor]]) -> Tensor:
    """Pack what the loss function reported for each microbatch into rows [sum, count], one per name (K x 2, float32).

    Two elements are [sum, count] already and are added up. One element is a value of its own, so the microbatches
    are counted: it becomes a plain average. No synchronisation.

    Raises:
        LossShapeError: another number of elements, a value that is no tensor, or microbatches with different names.
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
                f"loss {name!r}: is of type {type(value).__name__}, but it stays on the device until it is averaged. "
                "Report the tensor itself, such as loss.detach(), without item()."
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

    One all-reduce of all names together; no synchronisation with the host. An empty sequence (a pipeline stage without
    losses) gives an empty dict and no collective. All ranks of the group must report the same names in one order.
    """
    if not microbatches or not microbatches[0]:
        return {}
    rows = sum_and_count(microbatches)
    if groups is not None:
        torch.distributed.all_reduce(rows, group=groups.dp_cp)
    values = rows[:, 0] / rows[:, 1]
    return dict(zip(microbatches[0], values.unbind(), strict=True))
