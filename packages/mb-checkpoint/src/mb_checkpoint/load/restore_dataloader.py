"""Restoring the position of a stateful data loader, on all ranks or with an error on all."""

from collections.abc import Callable
from typing import Any

from mb_checkpoint.collectives import RanksFailedError, gather, on_every_rank
from mb_checkpoint.context import CheckpointLoadContext
from mb_checkpoint.errors import DataloaderStateError
from mb_checkpoint.state.dataloader import positioned


def restore_position(ctx: CheckpointLoadContext, stored: Callable[[], Any | None]) -> list[str]:
    """Restore the position of a stateful data loader. Collective.

    Returns a note, on all ranks, if no position was stored for the loader of a rank.

    Args:
        ctx: Load context with the iterator, on the ranks that have one.
        stored: Returns the position of this rank, or None; called only on ranks with a stateful loader.

    Raises:
        DataloaderStateError: The position could not be read or restored on a rank.
    """
    iterable = positioned(ctx.train_data_iterator)

    def restore() -> bool:
        position = stored() if iterable is not None else None
        if iterable is not None and position is not None:
            iterable.restore_state(position)
        return iterable is None or position is not None

    try:
        is_restored = all(gather(on_every_rank(restore)))
    except RanksFailedError as error:
        raise DataloaderStateError(f"data loader: its position could not be restored ({error})") from error
    return [] if is_restored else ["data loader: no position was stored; it starts from the beginning"]
