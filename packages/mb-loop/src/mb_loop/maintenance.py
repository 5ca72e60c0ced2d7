"""Periodic work of a long run: device synchronisation, replica checks, garbage collection. Imports torch."""

from collections.abc import Callable, Sequence
from typing import Any

from mb_loop.collectives import any_rank
from mb_loop.device import wait_for_device
from mb_loop.hooks import ForwardPreHooks
from mb_loop.losses import LossGroups
from mb_loop.manual_gc import ManualGC
from mb_loop.replicas import ReplicaCheck
from mb_loop.settings import TrainSettings


class StepMaintenance:
    """Periodic device synchronisation, replica comparison and garbage collection.

    Args:
        train: intervals, in steps.
        model: model chunks of this rank.
        groups: replicas are compared over its `dp_cp` group; None: they are not compared.
        hooks: disabled while replicas are compared.
        manual_gc: garbage collector of this run.
        synchronize: waits for the device.
    """

    def __init__(
        self,
        train: TrainSettings,
        model: Sequence[Any],
        *,
        groups: LossGroups | None,
        hooks: ForwardPreHooks,
        manual_gc: ManualGC,
        synchronize: Callable[[], object] = wait_for_device,
    ) -> None:
        self._sync_interval = train.train_sync_interval
        self._synchronize = synchronize
        self._manual_gc = manual_gc
        self._replicas = ReplicaCheck(
            model,
            interval=train.check_weight_hash_across_dp_replicas_interval,
            groups=groups,
            hooks=hooks,
            any_rank=any_rank,
        )

    def at_start(self, step: int) -> None:
        """Compare replicas before the first step, if an interval is set; collective over the world in that case.

        Raises:
            ReplicaMismatchError: on all ranks, if replicas differ anywhere.
        """
        self._replicas.at_start(step)

    def __call__(self, step: int) -> None:
        """Run the work that is due after this step. Collective over the world when replicas are compared.

        Raises:
            ReplicaMismatchError: on all ranks, if replicas differ anywhere.
        """
        if self._sync_interval and step % self._sync_interval == 0:
            self._synchronize()
        self._replicas(step)
        self._manual_gc.after_step(step)
