"""Checkpoints in a storage: copied there, listed, fetched and deleted, without rename, fsync or exact listings.

A checkpoint has a folder of its own, `iter_0000100.<run>.<hash of its manifest>`. Its data files are stored first, then
`manifest.json`, then `latest.json`, which names it as the one to resume from:

* A folder without a complete manifest is not a checkpoint, so that an interrupted copy is never read.
* Equal names mean equal content. An interrupted copy is continued: files that are there already are read and
  compared. Two processes that copy the same checkpoint do not disturb each other.
* The manifest has a hash of itself, and the checksums of all files: a file that appears in parts is detected.
* `latest.json` and the manifest are read by name. A listing that lags can hide only older checkpoints.
* A storage belongs to one run, see `owner`. Folders of other runs are neither read nor deleted.
* Before a checkpoint is deleted, the newer copy is read back, and its checksums and listed sizes are compared.

Checkpoints are deleted in the opposite order: the manifest first.
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

from mb_checkpoint.errors import ManifestError, StorageError, first_of
from mb_checkpoint.formats.layout import MANIFEST, iteration_directory
from mb_checkpoint.formats.manifest import (
    LARGEST,
    FileEntry,
    Manifest,
    decode_manifest,
    files_of_rank,
    hash_chunks,
    read_bytes,
)
from mb_checkpoint.inspect.best import BestCheckpoint, ranked
from mb_checkpoint.locks import reader_lock
from mb_checkpoint.save.kept_steps import steps_to_remove
from mb_checkpoint.storage.owner import (
    StorageOwner,
    claim_storage,
    put_json,
    read_owner,
    read_small,
    require_owner,
)
from mb_checkpoint.storage.storage import Storage
from mb_schema.file_names import FileNameError, path_inside
from mb_schema.files import fsync_path

T = TypeVar("T")
LATEST = "latest.json"
"""Name of the file that names the checkpoint to resume from."""
PROBE = ".probe"
"""Name of a small file that exists for a moment."""
THREADS = 8
"""Number of files that are copied concurrently."""
_LARGEST_STEP = 2**63
_FOLDER = re.compile(r"iter_(\d{7,19})(?:\.([0-9a-f]{12}))?\.[0-9a-f]{12}")
"""Step and run in the name of a folder; folders of older versions name no run, and belong to that of the storage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCheckpoint:
    """Complete checkpoint in a storage."""

    folder: str
    """Name of its folder."""
    step: int
    manifest: Manifest
    content: bytes
    """Content of its manifest.json."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """Result of copying a checkpoint to a storage."""

    folder: str
    """Name of its folder in the storage."""
    step: int
    total_bytes: int
    """Size of all files."""
    copied_bytes: int
    """Size of those that were not there yet."""
    removed: tuple[str, ...] = ()
    """Folders of old checkpoints and unfinished copies that were deleted."""


def upload_checkpoint(
    checkpoint: Path,
    storage: Storage,
    *,
    keep: int = -1,
    retain_interval: int | None = None,
    owner: StorageOwner | None = None,
    shared: bool = False,
) -> Upload:
    """Copy a checkpoint to a storage, make it the one to resume from, and delete old ones of its run there.

    A single process may copy to a storage at a time. Files that are there already are compared, and are copied again
    only if they are damaged.

    Args:
        checkpoint: Folder with a manifest. Its deletion is prevented during the copy.
        storage: The storage.
        keep: Number of newest checkpoints to keep in the storage; -1 keeps all.
        retain_interval: Multiples of this step are never deleted.
        owner: Result of `claim_storage`; None: the storage must be empty, or that of the run of the checkpoint.
        shared: The ranks have copied and compared all files with `upload_share`; those that are listed are not read.

    Raises:
        StorageError: The storage failed or belongs to another run, or the checkpoint has no intact manifest. Older
            checkpoints in the storage are unchanged.
        OSError: The identity of the run could not be written next to the checkpoint.
    """
    if owner is None:
        owner = claim_storage(storage, checkpoint.parent, name="the storage", exclusive=False)
    else:
        require_owner(storage, owner)
    with reader_lock(checkpoint):
        content = _content_of(checkpoint)
        manifest = _decode(content, source=f"{checkpoint / MANIFEST}")
        folder = _folder_of(manifest, content, owner.run)
        sizes = storage.sizes(f"{folder}/")
        present = [entry for entry in manifest.files if sizes.get(f"{folder}/{entry.name}") == entry.size]
        damaged = [] if shared else _differing(storage, folder, present)
        copied = [entry for entry in manifest.files if entry not in present or entry in damaged]

        def put(entry: FileEntry) -> None:
            storage.put(_file_in(checkpoint, entry.name), f"{folder}/{entry.name}")

        _in_threads(put, copied)
        storage.put(checkpoint / MANIFEST, f"{folder}/{MANIFEST}")
        files = storage.sizes()
        superseded = _superseded(
            storage, files, folder, manifest, run=owner.run, keep=keep, retain_interval=retain_interval
        )
        missing = [entry for entry in copied if files.get(f"{folder}/{entry.name}") != entry.size]
        if _put_again(put, storage, folder, copied if superseded else missing):
            files = storage.sizes(f"{folder}/")
        if not _is_listed(files, folder, manifest):
            superseded = []  # the listing lags; the next copy deletes them
    set_latest(storage, step=manifest.step, folder=folder)
    if superseded and owner.process:
        require_owner(storage, owner)
    for old_folder in superseded:
        delete_stored(storage, old_folder)
    return Upload(
        folder=folder,
        step=manifest.step,
        total_bytes=manifest.total_bytes,
        copied_bytes=sum(entry.size for entry in copied),
        removed=tuple(superseded),
    )


def upload_share(
    checkpoint: Path, storage: Storage, *, owner: StorageOwner, rank: int, world_size: int, read_back: bool
) -> int:
    """Copy the files of one of several ranks, ahead of `upload_checkpoint`; return the number of bytes copied.

    Args:
        checkpoint: Folder with a manifest. Its deletion is prevented during the copy.
        storage: The storage.
        owner: Result of `claim_storage` on rank 0.
        rank: The rank; it copies the files that it wrote.
        world_size: Number of ranks.
        read_back: Read what was copied and compare it, as is required before an older checkpoint is deleted.

    Raises:
        StorageError: The storage failed or belongs to another run, or the checkpoint has no intact manifest.
    """
    require_owner(storage, owner)
    with reader_lock(checkpoint):
        content = _content_of(checkpoint)
        manifest = _decode(content, source=f"{checkpoint / MANIFEST}")
        folder = _folder_of(manifest, content, owner.run)

        def put(entry: FileEntry) -> None:
            storage.put(_file_in(checkpoint, entry.name), f"{folder}/{entry.name}")

        share = files_of_rank(manifest, rank=rank, world_size=world_size)
        copied = _differing(storage, folder, share)  # those that are missing, too
        _in_threads(put, copied)
        if read_back:
            _put_again(put, storage, folder, copied)
    return sum(entry.size for entry in copied)


def _put_again(
    put: Callable[[FileEntry], None], storage: Storage, folder: str, entries: Collection[FileEntry]
) -> bool:
    """Read copied files, and copy those that differ again; return whether there were any.

    Raises:
        StorageError: One of them differs again.
    """
    damaged = _differing(storage, folder, entries)
    _in_threads(put, damaged)
    if again := _differing(storage, folder, damaged):
        raise StorageError(
            f"{folder}: the copy differs from the manifest after two attempts "
            f"({first_of([entry.name for entry in again])}); older copies are kept. Check the storage, and "
            "verify the checkpoint on the disk"
        )
    return bool(damaged)


def _differing(storage: Storage, folder: str, entries: Collection[FileEntry]) -> list[FileEntry]:
    """Return the files of a checkpoint in a storage whose content differs from their entries; reads them."""

    def read(entry: FileEntry) -> FileEntry | None:
        return (
            None if hash_chunks(storage.read(f"{folder}/{entry.name}") or (), like=entry) == entry else entry
        )

    return [entry for entry in _in_threads(read, list(entries)) if entry is not None]


def _file_in(folder: Path, name: str) -> Path:
    try:
        return path_inside(folder, name)
    except FileNameError as error:
        raise StorageError(f"{folder}: {MANIFEST} {error}. Take another checkpoint.") from error


def set_latest(storage: Storage, *, step: int, folder: str | None) -> None:
    """Name the step to resume from, and its folder if it is in the storage.

    Raises:
        StorageError: The storage failed.
    """
    put_json(storage, LATEST, {"folder": folder, "step": step})


def check_storage_writable(storage: Storage) -> None:
    """Store a small file and delete it.

    Raises:
        StorageError: One of the two failed.
    """
    put_json(storage, PROBE, {})
    storage.delete(PROBE)


def find_stored(
    storage: Storage, *, step: int | None = None, rejected: Collection[str] = ()
) -> StoredCheckpoint | None:
    """Return the checkpoint to resume from: the one that `latest.json` names, else the newest complete one before it.

    Reads manifests, never data.

    Args:
        storage: The storage.
        step: Step to find instead.
        rejected: Folders that are known to be damaged.

    Raises:
        StorageError: The storage failed.
    """
    named_step, named = read_latest(storage)
    folders = set(_folders(storage.sizes(), _run_there(storage)))
    if named is not None:
        folders.add(named)  # a listing may lag
    for folder in sorted(
        folders - set(rejected), key=lambda name: (_step(name), name == named), reverse=True
    ):
        if step is not None and _step(folder) != step:
            continue
        if step is None and named_step is not None and _step(folder) > named_step:
            continue  # of another branch of the run, or never committed
        stored = read_stored(storage, folder)
        if stored is not None:
            return stored
    return None


def read_latest(storage: Storage) -> tuple[int | None, str | None]:
    """Return step and folder that `latest.json` names; None for each that is not known.

    Raises:
        StorageError: The storage failed.
    """
    content = read_small(storage, LATEST)
    try:
        body = json.loads(content or b"")
        step, folder = body["step"], body["folder"]
    except (ValueError, LookupError, TypeError, RecursionError):
        # Missing or damaged: the newest complete one counts.
        return None, None
    if type(step) is not int or not 0 <= step < _LARGEST_STEP:
        return None, None
    is_known = isinstance(folder, str) and bool(_folders([folder], _run_there(storage)))
    return step, folder if is_known else None


def read_stored(storage: Storage, folder: str) -> StoredCheckpoint | None:
    """Return a checkpoint in a storage; None if it has no complete manifest.

    Raises:
        StorageError: The storage failed.
    """
    content = read_small(storage, f"{folder}/{MANIFEST}", largest=LARGEST)
    if content is None:
        return None
    try:
        manifest = decode_manifest(content, source=folder)
    except ManifestError:
        return None
    if _folder_of(manifest, content, _run(folder)) != folder:
        return None
    return StoredCheckpoint(folder=folder, step=manifest.step, manifest=manifest, content=content)


def fetch_files(
    stored: StoredCheckpoint,
    storage: Storage,
    target: Path,
    *,
    entries: Iterable[FileEntry] | None = None,
) -> list[str]:
    """Copy files of a checkpoint to a folder, without its manifest; return a line for each that is not intact.

    Args:
        stored: The checkpoint.
        storage: The storage.
        target: Existing folder.
        entries: Files to copy; None: all of them.

    Raises:
        StorageError: The storage failed.
        OSError: A file could not be written.
    """

    def fetch(entry: FileEntry) -> str | None:
        chunks = storage.read(f"{stored.folder}/{entry.name}")
        if chunks is None:
            return f"lacks {entry.name}"
        file = _file_in(target, entry.name)
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("wb") as stream:
            actual = hash_chunks(chunks, like=entry, each=stream.write)
        fsync_path(file)
        return None if actual == entry else f"{entry.name} differs from the manifest (checksum)"

    requested = list(stored.manifest.files if entries is None else entries)
    return [line for line in _in_threads(fetch, requested) if line is not None]


def list_stored(storage: Storage) -> list[StoredCheckpoint]:
    """Return the complete checkpoints in a storage, newest first.

    Raises:
        StorageError: The storage failed.
    """
    _, named = read_latest(storage)
    folders = {*_folders(storage.sizes(), _run_there(storage)), *([named] if named else [])}
    ordered = sorted(folders, key=_step, reverse=True)
    return [stored for name in ordered if (stored := read_stored(storage, name)) is not None]


def best_of(manifests: Mapping[str, Manifest]) -> BestCheckpoint | None:
    """Return the best of these checkpoints of a storage by `checkpoint.best_metric`; its path is its folder."""
    return next(iter(ranked({Path(folder): manifest for folder, manifest in manifests.items()})), None)


def _superseded(
    storage: Storage,
    files: Mapping[str, int],
    current: str,
    manifest: Manifest,
    *,
    run: str,
    keep: int,
    retain_interval: int | None,
) -> list[str]:
    """Return unfinished copies, other checkpoints of the current step, and those beyond the `keep` newest intact ones.

    Folders of other runs, and the best checkpoint by `checkpoint.best_metric`, are not among them.
    """
    step = manifest.step
    other_folders = {name: read_stored(storage, name) for name in _folders(files, run) if name != current}
    complete = {name: stored.manifest for name, stored in other_folders.items() if stored is not None}
    intact = {step, *(_step(name) for name, its in complete.items() if _is_listed(files, name, its))}
    old = steps_to_remove(
        {step, *map(_step, complete)},
        keep=keep,
        protected=step,
        retain_interval=retain_interval,
        is_intact=intact.__contains__,
    )
    best = best_of({**complete, current: manifest})
    return [
        name
        for name in sorted(other_folders)
        if name not in complete
        or _step(name) == step
        or (_step(name) in old and (best is None or name != str(best.path)))
    ]


def _is_listed(files: Mapping[str, int], folder: str, manifest: Manifest) -> bool:
    """Return whether a listing shows all files of a checkpoint with their sizes."""
    return all(files.get(f"{folder}/{entry.name}") == entry.size for entry in manifest.files)


def delete_stored(storage: Storage, folder: str) -> None:
    """Delete a checkpoint, the manifest first.

    Raises:
        StorageError: The storage failed.
    """
    storage.delete(f"{folder}/{MANIFEST}")
    for name in storage.sizes(f"{folder}/"):
        storage.delete(name)


def _folders(names: Iterable[str], run: str | None) -> list[str]:
    """Return the folders of the checkpoints of a run in a listing; those of all runs without one."""
    folders = dict.fromkeys(name.partition("/")[0] for name in names)
    return [
        name for name in folders if _FOLDER.fullmatch(name) and (run is None or _run(name) in (None, run))
    ]


def _run_there(storage: Storage) -> str | None:
    owner = read_owner(storage)
    return None if owner is None else owner.run


def _run(folder: str) -> str | None:
    """Return the run in the name of a folder; None for those of older versions."""
    match = _FOLDER.fullmatch(folder)
    return None if match is None else match[2]


def _step(folder: str) -> int:
    match = _FOLDER.fullmatch(folder)
    return -1 if match is None else int(match[1])


def _folder_of(manifest: Manifest, content: bytes, run: str | None) -> str:
    return ".".join(
        filter(None, (iteration_directory(Path(), manifest.step).name, run, sha256(content).hexdigest()[:12]))
    )


def _content_of(checkpoint: Path) -> bytes:
    try:
        return read_bytes(checkpoint / MANIFEST)
    except OSError as error:
        raise StorageError(
            f"{checkpoint}: has no readable {MANIFEST} ({error.strerror}), without which a copy could not be verified. "
            "Name a checkpoint that this package wrote."
        ) from error


def _decode(content: bytes, *, source: str) -> Manifest:
    try:
        return decode_manifest(content, source=source)
    except ManifestError as error:
        raise StorageError(str(error)) from error


def _in_threads(work: Callable[[FileEntry], T], entries: list[FileEntry]) -> list[T]:
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(work, sorted(entries, key=lambda entry: -entry.size)))
