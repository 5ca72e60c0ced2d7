"""Periodic work of a long run: device synchronisation, replica checks, garbage collection. Imports torch."""

from collections.abc import Callable

import torch

from mb_loop.maintenance.manual_gc import ManualGC
from mb_loop.maintenance.replicas import ReplicaCheck
from mb_loop.settings import TrainSettings
from mb_loop.train_loop import PeriodicTask


def wait_for_device() -> None:
    """Wait for all work on the GPU to complete; does nothing without a GPU."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def maintenance_tasks(
    train: TrainSettings,
    *,
    replicas: ReplicaCheck | None,
    manual_gc: ManualGC,
    synchronize: Callable[[], object] = wait_for_device,
) -> list[PeriodicTask]:
    """Return the work that the settings require between steps, in order of execution.

    Args:
        train: intervals, in steps.
        replicas: compares the weights of replicas, collectively over the world; None: they are not compared.
        manual_gc: garbage collector of this run.
        synchronize: waits for the device.
    """
    intervals = (
        (train.train_sync_interval, lambda _step: synchronize()),
        (train.check_weight_hash_across_dp_replicas_interval if replicas is not None else None, replicas),
        (manual_gc.interval, manual_gc.collect),
    )
    return [PeriodicTask(interval=interval, run=run) for interval, run in intervals if interval and run]
