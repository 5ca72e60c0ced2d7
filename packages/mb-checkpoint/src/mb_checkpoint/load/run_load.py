"""Load of a run through any checkpoint manager, with one line in the log for each result."""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from mb_checkpoint.collectives import on_rank_zero
from mb_checkpoint.context import (
    CheckpointLoadContext,
    CheckpointManager,
    CheckpointProbe,
    LoadedCheckpoint,
    RunCountersLike,
)
from mb_checkpoint.errors import ManagerStateError
from mb_checkpoint.state.dataloader import align_chunk_positions


@runtime_checkable
class LoadReporter(Protocol):
    """Manager that keeps the record of its last load; `DefaultCheckpointManager` matches."""

    @property
    def loaded(self) -> LoadedCheckpoint | None:
        """Record of the last load; None before."""
        ...


def load_run(
    manager: CheckpointManager,
    context: CheckpointLoadContext,
    *,
    counters: RunCountersLike,
    log: Callable[[str], object],
) -> LoadedCheckpoint:
    """Load what the manager finds, log it, and return its record. Collective over the world.

    The default manager, and others with its attribute `loaded`, always load: only their load finds checkpoints on the
    disks of the nodes. For another manager with `has_checkpoint`, rank 0 calls that first. One without it always loads,
    and returns (0, 0) if it has no checkpoint.

    Args:
        manager: manager of checkpoints.
        context: state to load into.
        counters: counters of the context's state.
        log: receives the lines.

    Raises:
        ManagerStateError: the manager returned a step and left the counters unchanged.
    """
    reports = isinstance(manager, LoadReporter) and isinstance(manager.loaded, LoadedCheckpoint | None)
    probed = not reports and isinstance(manager, CheckpointProbe)
    if probed and not on_rank_zero(manager.has_checkpoint):  # type: ignore[attr-defined]  # a CheckpointProbe
        return LoadedCheckpoint(source="nothing")
    step, operations = manager.load(context)
    align_chunk_positions(context.train_data_iterator)
    loaded = manager.loaded if isinstance(manager, LoadReporter) else None
    if isinstance(loaded, LoadedCheckpoint):
        log_loaded(loaded, log)
        return loaded
    if step and not counters.step:
        name = f"{type(manager).__module__}.{type(manager).__qualname__}"
        raise ManagerStateError(
            f"checkpoint.custom_manager_class: load of {name} returned step {step} and left ctx.state.train_state at "
            "step 0, from which data and schedule would start again. Restore it with "
            "ctx.state.train_state.load_state_dict."
        )
    if not (step or operations or probed):
        return LoadedCheckpoint(source="nothing")
    log(f"resumed at step {counters.step}")
    return LoadedCheckpoint(source="resumed", step=counters.step, floating_point_operations_so_far=operations)


def log_loaded(loaded: LoadedCheckpoint, log: Callable[[str], object]) -> None:
    """Log the checkpoints that a load has skipped, what it has not restored, and what it has loaded."""
    if loaded.source == "nothing":
        return
    for skipped in loaded.skipped:
        log(f"skipped {skipped.path}: {skipped.reason}")
    for note in loaded.notes:
        log(note)
    if loaded.source == "weights":
        log(f"weights from {loaded.path}")
    else:
        log(f"resumed from {loaded.path} at step {loaded.step}")
