"""Timeout of the process groups after the first step. Imports torch."""

from datetime import timedelta

import torch
from torch.distributed import distributed_c10d


class TimeoutAfterFirstStep:
    """Callback that sets another timeout for all process groups after the first step of this process.

    The first step takes long because it compiles, allocates and reads; a later step of that duration indicates a hang.
    Local to each rank.

    Args:
        seconds: timeout after the first step, `dist.distributed_timeout_seconds_after_init`.

    Raises:
        ValueError: `seconds` is not positive.
    """

    def __init__(self, seconds: float) -> None:
        if seconds <= 0:
            raise ValueError(
                f"dist.distributed_timeout_seconds_after_init: is {seconds} s, so every collective would time "
                "out immediately. Set a positive number, or None."
            )
        self._timeout: timedelta | None = timedelta(seconds=seconds)

    def on_train_step_end(self, context: object) -> None:
        """Set the timeout, once."""
        if self._timeout is not None and torch.distributed.is_initialized():
            for group in distributed_c10d._world.pg_map:
                distributed_c10d._set_pg_timeout(self._timeout, group)
        self._timeout = None
