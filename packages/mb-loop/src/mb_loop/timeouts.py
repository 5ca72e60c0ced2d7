"""A shorter time-out of the process groups once training has begun. Needs torch."""

from datetime import timedelta

import torch
from torch.distributed import distributed_c10d

from mb_loop.callbacks import Callback, CallbackContext


class TimeoutAfterFirstStep(Callback):
    """Gives all process groups of this rank another time-out after the first step that this process makes.

    The first step compiles, allocates and reads for long; later ones that take so long hang. Local, on every rank.

    Args:
        seconds: the time-out from then on, `dist.distributed_timeout_seconds_after_init`.

    Raises:
        ValueError: `seconds` is not positive.
    """

    def __init__(self, seconds: float) -> None:
        if seconds <= 0:
            raise ValueError(
                f"dist.distributed_timeout_seconds_after_init: {seconds} s would end every collective at once. "
                "Set a positive number, or leave it unset."
            )
        self._timeout: timedelta | None = timedelta(seconds=seconds)

    def on_train_step_end(self, context: CallbackContext) -> None:
        """Set the time-out, once."""
        if self._timeout is not None and torch.distributed.is_initialized():
            for group in distributed_c10d._world.pg_map:
                distributed_c10d._set_pg_timeout(self._timeout, group)
        self._timeout = None
