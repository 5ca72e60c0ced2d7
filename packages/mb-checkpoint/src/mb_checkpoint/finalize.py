"""The end of a save, when every rank has written its data: index, manifest, commit, and old checkpoints go."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata

from mb_checkpoint.commit import commit, fsync_and_write_manifest
from mb_checkpoint.manifest import FileEntry, Manifest
from mb_checkpoint.retention import PruneResult, prune
from mb_checkpoint.verified_cache import VerifiedCache
from mb_checkpoint.writing import collect_results


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalizeJob:
    """What one process needs to finish a save; it can be sent to another process."""

    root: Path
    staging: Path
    world_size: int
    """Ranks that left their results in the staging folder."""
    index: Metadata | None
    """Tensors and objects of all ranks, without their places in files; None: another writer wrote data and index."""
    facts: Manifest
    """The manifest but for the files."""
    keep: int
    """How many checkpoints stay; -1: all."""
    retain_interval: int | None
    """Multiples of it stay for ever."""
    contents: bool = True
    """Before old ones go, compare those that stay with their hashes, once in the life of a process; False: where this
    process does not know them, sizes alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalizedSave:
    """A committed checkpoint."""

    path: Path
    total_bytes: int
    pruned: PruneResult


def finalize_save(
    job: FinalizeJob,
    verified: VerifiedCache | None = None,
    *,
    progress: Callable[[int], object] = lambda _bytes: None,
) -> FinalizedSave:
    """Commit what all ranks have written, then let old ones go. Call it in one process.

    Args:
        job: What to finish.
        verified: What this process knows of the checkpoints there, and learns now; None: nothing.
        progress: Told each number of bytes that are read to be hashed, where another writer wrote them.

    Raises:
        OSError: Something could not be written; earlier checkpoints are as before.
    """
    entries: list[FileEntry] = []
    if job.index is not None:
        written = collect_results(job.staging, job.world_size)
        FileSystemWriter(job.staging).finish(job.index, [list(each.results) for each in written])
        entries = [entry for each in written for entry in each.files]
    manifest = fsync_and_write_manifest(job.staging, job.facts, written=entries, progress=progress)
    path = commit(job.root, job.facts.step, job.staging)
    known = verified or VerifiedCache()
    known.trust(path)
    pruned = prune(
        job.root,
        keep=job.keep,
        protected=job.facts.step,
        retain_interval=job.retain_interval,
        verified=known,
        contents=job.contents,
    )
    return FinalizedSave(path=path, total_bytes=manifest.total_bytes, pruned=pruned)
