"""End of a save, after every rank has written its data: index, manifest, commit, and deletion of old checkpoints."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata

from mb_checkpoint.formats.checksums import Checksum
from mb_checkpoint.formats.manifest import Manifest
from mb_checkpoint.inspect.best import BEST_METRIC, link_best
from mb_checkpoint.inspect.verified_cache import VerifiedCache
from mb_checkpoint.save.commit import commit, fsync_and_write_manifest
from mb_checkpoint.save.retention import PruneResult, prune
from mb_checkpoint.save.writing import collect_results


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalizeJob:
    """Commit of one save: the arguments of `finalize_save`.

    Every rank has it; rank 0 runs it, in this process or, for a background save, in its writer process.
    """

    root: Path
    staging: Path
    world_size: int
    """Number of ranks that left their results in the staging folder."""
    index: Metadata | None
    """Tensors and objects of all ranks, without their positions in files; None on other ranks than 0, and if another
    writer wrote data and index."""
    facts: Manifest
    """The manifest without the list of files."""
    keep: int
    """Number of checkpoints to keep; -1 keeps all."""
    retain_interval: int | None
    """Multiples of this step are never deleted."""
    checksum: Checksum = "xxh3_128"
    """Algorithm of the checksums of files that the ranks did not write."""
    verified: VerifiedCache = field(default_factory=VerifiedCache)
    """Checkpoints that this run has found intact or damaged. Of the others only sizes are compared before old ones are
    deleted: reading them would take longer than the save."""

    @property
    def step(self) -> int:
        """Step of the save."""
        return self.facts.step


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalizedSave:
    """A committed checkpoint."""

    path: Path
    total_bytes: int
    pruned: PruneResult


def finalize_save(
    job: FinalizeJob, *, progress: Callable[[int], object] = lambda _bytes: None
) -> FinalizedSave:
    """Commit the data that all ranks have written, then delete old checkpoints. Runs in one process.

    Args:
        job: The save to finalize.
        progress: Called with the number of bytes of each chunk of the small files that is read for hashing, and with 1
            for each file that is deleted.

    Raises:
        OSError: Writing failed; earlier checkpoints are unchanged.
    """
    results = collect_results(job.staging, job.world_size)
    if job.index is not None:
        FileSystemWriter(job.staging).finish(job.index, [list(result.results) for result in results])
    entries = [entry for result in results for entry in result.files]
    manifest = fsync_and_write_manifest(
        job.staging, job.facts, written=entries, checksum=job.checksum, progress=progress
    )
    path = commit(job.root, job.facts.step, job.staging)
    if BEST_METRIC in job.facts.content:
        link_best(job.root, up_to=job.step)
    finalized = FinalizedSave(path=path, total_bytes=manifest.total_bytes, pruned=PruneResult())
    if job.keep == -1:
        return finalized  # all are kept: nothing to list, and no tracker to read
    pruned = prune(
        job.root,
        keep=job.keep,
        protected=job.facts.step,
        retain_interval=job.retain_interval,
        verified=job.verified,
        contents=False,
        progress=progress,
    )
    return replace(finalized, pruned=pruned)
