"""Copying a checkpoint from a storage into a folder of checkpoints, by all ranks together."""

from functools import partial
from pathlib import Path

from mb_checkpoint.collectives import gather, number_of_ranks, on_rank_zero, own_rank
from mb_checkpoint.errors import (
    CheckpointNotFoundError,
    NoIntactCheckpointError,
    StorageError,
    cause_of,
    first_of,
)
from mb_checkpoint.formats.layout import MANIFEST, iteration_directory
from mb_checkpoint.formats.manifest import files_of_rank
from mb_checkpoint.inspect.best import link_best
from mb_checkpoint.save.commit import commit, discard, open_staging, write_atomically
from mb_checkpoint.storage.checkpoints import (
    StoredCheckpoint,
    best_of,
    fetch_files,
    find_stored,
    list_stored,
)
from mb_checkpoint.storage.owner import StorageOwner, read_owner, remember_run, run_of_folder
from mb_checkpoint.storage.storage import Storage


def fetch_checkpoint(storage: Storage, root: Path, *, step: int | None = None) -> Path:
    """Copy the newest intact checkpoint of a storage into a folder of checkpoints, and return its folder.

    Collective over the default process group, if there is one; the folder must be the same one on every rank. The
    commit is that of a save: the checkpoint becomes visible when it is complete, and then the trackers name it. The
    link `best` names it if it is the best one of the storage.

    Args:
        storage: The storage; see `open_storage`.
        root: Folder that receives the folder of the step; an older folder of that step is replaced.
        step: Step to fetch instead.

    Raises:
        CheckpointNotFoundError: There is no such checkpoint.
        NoIntactCheckpointError: All are damaged.
        StorageError: The storage could not be read, or the folder is that of another run.
        OSError: The folder could not be written.
    """
    owner = on_rank_zero(lambda: _owner_for(storage, root))
    rejected: dict[str, str] = {}
    while True:
        stored = on_rank_zero(lambda: find_stored(storage, step=step, rejected=rejected))
        if stored is None:
            raise on_rank_zero(lambda: _not_found(storage, step, rejected))
        damage = fetch_stored(stored, storage, root)
        if not damage:
            if owner is not None:
                on_rank_zero(lambda: remember_run(root, owner.run))
            on_rank_zero(partial(_link_best, stored, storage, root))
            return iteration_directory(root, stored.step)
        rejected[stored.folder] = damage


def _link_best(stored: StoredCheckpoint, storage: Storage, root: Path) -> None:
    """Point the link `best` to a fetched checkpoint that is the best one of the storage."""
    best = best_of({each.folder: each.manifest for each in list_stored(storage)})
    if best is not None and str(best.path) == stored.folder:
        link_best(root, up_to=stored.step)


def _owner_for(storage: Storage, root: Path) -> StorageOwner | None:
    """Return the run of a storage whose checkpoint a folder may receive.

    Raises:
        StorageError: The folder is that of another run.
    """
    local_run, owner = run_of_folder(root), read_owner(storage)
    if owner is not None and local_run not in (None, owner.run):
        raise StorageError(
            f"{root}: is the folder of the run {local_run}, and the storage belongs to {owner}. Fetch into a new "
            "folder."
        )
    return owner


def fetch_stored(stored: StoredCheckpoint, storage: Storage, root: Path) -> str:
    """Copy one checkpoint into a folder of checkpoints; return why it is not intact, "" if it is and was committed.

    Collective; each rank copies a share of the files.

    Raises:
        StorageError: The storage could not be read, or the folder could not be written, on a rank.
        OSError: The folder could not be written.
    """
    staging = on_rank_zero(lambda: open_staging(root, stored.step))
    share = files_of_rank(stored.manifest, rank=own_rank(), world_size=number_of_ranks())
    failure = ""
    damage: list[str] = []
    try:
        damage = fetch_files(stored, storage, staging, entries=share)
    except OSError as error:
        failure = str(error) if isinstance(error, StorageError) else cause_of(error)
    outcomes = gather((failure, damage))
    failures = first_of([failed for failed, _ in outcomes if failed])
    damaged = first_of([line for _, lines in outcomes for line in lines])

    def finish() -> None:
        if failures or damaged:
            discard(staging)
        else:
            write_atomically(staging / MANIFEST, stored.content)
            commit(root, stored.step, staging)

    on_rank_zero(finish)
    if failures:
        raise StorageError(f"{stored.folder} could not be fetched: {failures}")
    return damaged


def _not_found(storage: Storage, step: int | None, rejected: dict[str, str]) -> Exception:
    if rejected:
        listing = "; ".join(f"{folder}: {damage}" for folder, damage in rejected.items())
        return NoIntactCheckpointError(f"the storage has no intact checkpoint ({listing}). Name another one.")
    available_steps = ", ".join(str(stored.step) for stored in list_stored(storage)) or "none"
    requested = "checkpoint" if step is None else f"step {step}"
    return CheckpointNotFoundError(
        f"the storage has no {requested}; steps there: {available_steps}. Name another storage or step."
    )
