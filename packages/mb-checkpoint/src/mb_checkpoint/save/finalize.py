"""End of a save, after every rank has written its data: index, manifest and commit."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata

from mb_checkpoint.formats.checksums import Checksum
from mb_checkpoint.formats.manifest import Manifest
from mb_checkpoint.inspect.best import BEST_METRIC, link_best
from mb_checkpoint.save.commit import commit, fsync_and_write_manifest
from mb_checkpoint.save.retention import PruneJob
from mb_checkpoint.save.writing import WrittenFiles, collect_results


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalizeJob:
    """Commit of one save: the arguments of `finalize_save`.

    Every rank has it; rank 0 runs it, in this process or, for a background save, in its writer process.
    """

    root: Path
    staging: Path
    world_size: int
    """Number of ranks that write."""
    index: Metadata | None
    """Tensors and objects of all ranks, without their positions in files; None on other ranks than 0, and if another
    writer wrote data and index."""
    facts: Manifest
    """The manifest without the list of files."""
    pruning: PruneJob
    """Deletion of old checkpoints, to be run once the save has been reported."""
    checksum: Checksum = "xxh3_128"
    """Algorithm of the checksums of files that the ranks did not write."""

    @property
    def step(self) -> int:
        """Step of the save."""
        return self.facts.step


def finalize_save(
    job: FinalizeJob,
    *,
    results: Sequence[WrittenFiles] | None = None,
    progress: Callable[[int], object] = lambda _bytes: None,
) -> int:
    """Commit the data that all ranks have written; return the number of bytes of all files. Runs in one process.

    Args:
        job: The save to finalize.
        results: Files that each rank wrote; None: the ranks left their results in the staging folder.
        progress: Called with the number of bytes of each chunk of the small files that is read for hashing.

    Raises:
        OSError: Writing failed; earlier checkpoints are unchanged.
    """
    if results is None:
        results = collect_results(job.staging, job.world_size)
    if job.index is not None:
        FileSystemWriter(job.staging).finish(job.index, [list(result.results) for result in results])
    entries = [entry for result in results for entry in result.files]
    manifest = fsync_and_write_manifest(
        job.staging, job.facts, written=entries, checksum=job.checksum, progress=progress
    )
    commit(job.root, job.facts.step, job.staging)
    if BEST_METRIC in job.facts.content:
        link_best(job.root, up_to=job.step)
    return manifest.total_bytes
