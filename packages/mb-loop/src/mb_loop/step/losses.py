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
        LossShapeError: a loss has another number of elements or is not a tensor, or microbatches have different names
            or numbers of elements.
    """
    names = list(microbatches[0])
    for number, losses in enumerate(microbatches):
        if list(losses) != names:
            raise LossShapeError(
                f"losses: microbatch {number} reports {list(losses)}, the first one {names}, so there is no average of "
                "each. Report the same names in the same order for all microbatches."
            )
    rows = []
    for name in names:
        values = [losses[name] for losses in microbatches]
        sizes = {value.numel() if isinstance(value, Tensor) else 0 for value in values}
        if sizes != {1} and sizes != {2}:
            raise _unusable_loss(name, values)
        columns = [value.detach().float().reshape(-1) for value in values]
        total = columns[0] if len(columns) == 1 else torch.stack(columns).sum(dim=0)
        rows.append(total if len(total) == 2 else torch.cat([total, total.new_full((1,), len(values))]))
    return torch.stack(rows)


def _unusable_loss(name: str, values: Sequence[object]) -> LossShapeError:
    for value in values:
        if not isinstance(value, Tensor):
            return LossShapeError(
                f"loss {name!r}: is of type {type(value).__name__}, but losses remain on the device until "
                "they are averaged. Report the tensor itself, such as loss.detach(), without item()."
            )
    sizes = sorted({value.numel() for value in values if isinstance(value, Tensor)})
    return LossShapeError(
        f"loss {name!r}: has {' or '.join(map(str, sizes))} elements, but only a scalar and [sum, count] can be "
        "averaged. Report the same one of these from the loss function for every microbatch."
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
    # Sums and counts are reduced, and divided last: ranks of context parallelism have parts of a sequence, and masked
    # tokens make the counts of replicas differ, so an average of averages would weight tokens unequally.
    rows = sum_and_count(microbatches)
    if groups is not None:
        torch.distributed.all_reduce(rows, group=groups.dp_cp)
    values = rows[:, 0] / rows[:, 1]
    return dict(zip(microbatches[0], values.unbind(), strict=True))
