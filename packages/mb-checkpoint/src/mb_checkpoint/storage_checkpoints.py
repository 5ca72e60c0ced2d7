"""Checkpoints in a storage: copied there, listed, fetched and deleted, without rename, fsync or exact listings.

A checkpoint has a folder of its own, `iter_0000100.<hash of its manifest>`. Its data files are stored first, then
`manifest.json`, then `latest.json`, which names it as the one to resume from:

* A folder without a complete manifest is not a checkpoint, so that an interrupted copy is never read.
* Equal names mean equal content. An interrupted copy is continued, two processes that copy the same checkpoint do not
  disturb each other, and another checkpoint of the same step does not touch the first one.
* The manifest has a hash of itself, and the checksums of all files: a file that appears in parts is detected.
* `latest.json` and the manifest are read by name. A listing that lags can hide only older checkpoints.

Checkpoints are deleted in the opposite order: the manifest first.
"""

import json
import re
import tempfile
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from mb_checkpoint.commit import fsync_path
from mb_checkpoint.errors import ManifestError, StorageError
from mb_checkpoint.kept_steps import steps_to_remove
from mb_checkpoint.layout import MANIFEST, step_of
from mb_checkpoint.locks import reader_lock
from mb_checkpoint.manifest import FileEntry, Manifest, decode_manifest, hash_file
from mb_checkpoint.storage import Storage

LATEST = "latest.json"
"""Name of the file that names the checkpoint to resume from."""
PROBE = ".probe"
"""Name of an empty file that exists for a moment."""
THREADS = 8
"""Number of files that are copied concurrently."""
_FOLDER = re.compile(r"iter_(\d{7,})\.[0-9a-f]{12}")


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
    progress: Callable[[int], object] = lambda _bytes: None,
) -> Upload:
    """Copy a checkpoint to a storage, make it the one to resume from, and delete old ones there.

    A single process may copy to a storage at a time. Files that are there already are not copied again.

    Args:
        checkpoint: Folder with a manifest. Its deletion is prevented during the copy.
        storage: The storage.
        keep: Number of newest checkpoints to keep in the storage; -1 keeps all.
        retain_interval: Multiples of this step are never deleted.
        progress: Called with the size of each file that was copied, in any thread.

    Raises:
        StorageError: The storage failed, or the checkpoint has no intact manifest. Checkpoints in the storage are
            unchanged.
    """
    with reader_lock(checkpoint):
        content = _content_of(checkpoint)
        manifest = _decode(content, source=f"{checkpoint / MANIFEST}")
        folder = _folder_of(manifest, content)
        there = storage.sizes(f"{folder}/")
        missing = [each for each in manifest.files if there.get(f"{folder}/{each.name}") != each.size]

        def put(entry: FileEntry) -> None:
            storage.put(checkpoint / entry.name, f"{folder}/{entry.name}")
            progress(entry.size)

        _in_threads(put, missing)
        storage.put(checkpoint / MANIFEST, f"{folder}/{MANIFEST}")
    set_latest(storage, step=manifest.step, folder=folder)
    return Upload(
        folder=folder,
        step=manifest.step,
        total_bytes=manifest.total_bytes,
        copied_bytes=sum(each.size for each in missing),
        removed=_prune(storage, folder, keep=keep, retain_interval=retain_interval),
    )


def set_latest(storage: Storage, *, step: int, folder: str | None) -> None:
    """Name the step to resume from, and its folder if it is in the storage.

    Raises:
        StorageError: The storage failed.
    """
    with tempfile.TemporaryDirectory() as temporary:
        file = Path(temporary, LATEST)
        file.write_text(json.dumps({"folder": folder, "step": step}) + "\n")
        storage.put(file, LATEST)


def check_storage_writable(storage: Storage) -> None:
    """Store an empty file and delete it.

    Raises:
        StorageError: One of the two failed.
    """
    with tempfile.NamedTemporaryFile() as file:
        storage.put(Path(file.name), PROBE)
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
    found = {each for name in storage.sizes() if _FOLDER.fullmatch(each := name.partition("/")[0])}
    if named is not None:
        found.add(named)  # a listing may lag
    for folder in sorted(found - set(rejected), key=lambda each: (_step(each), each == named), reverse=True):
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
    content = _read(storage, LATEST)
    try:
        body = json.loads(content or b"")
        step, folder = int(body["step"]), body["folder"]
    except (ValueError, LookupError, TypeError):  # missing or damaged: the newest complete checkpoint counts
        return None, None
    return step, folder if isinstance(folder, str) and _FOLDER.fullmatch(folder) else None


def read_stored(storage: Storage, folder: str) -> StoredCheckpoint | None:
    """Return a checkpoint in a storage; None if it has no complete manifest.

    Raises:
        StorageError: The storage failed.
    """
    content = _read(storage, f"{folder}/{MANIFEST}")
    if content is None:
        return None
    try:
        manifest = decode_manifest(content, source=folder)
    except ManifestError:
        return None
    if _folder_of(manifest, content) != folder:
        return None
    return StoredCheckpoint(folder=folder, step=manifest.step, manifest=manifest, content=content)


def fetch_files(
    stored: StoredCheckpoint,
    storage: Storage,
    target: Path,
    *,
    entries: Iterable[FileEntry] | None = None,
    progress: Callable[[int], object] = lambda _bytes: None,
) -> list[str]:
    """Copy files of a checkpoint to a folder, without its manifest; return a line for each that is not intact.

    Args:
        stored: The checkpoint.
        storage: The storage.
        target: Existing folder.
        entries: Files to copy; None: all of them.
        progress: Called with the size of each file, in any thread.

    Raises:
        StorageError: The storage failed.
        OSError: A file could not be written.
    """

    def fetch(entry: FileEntry) -> str | None:
        file = target / entry.name
        file.parent.mkdir(parents=True, exist_ok=True)
        if not storage.get(f"{stored.folder}/{entry.name}", file):
            return f"lacks {entry.name}"
        fsync_path(file)
        algorithm = entry.checksum.partition(":")[0]
        found = hash_file(file, name=entry.name, algorithm=algorithm)  # type: ignore[arg-type]  # of a manifest
        progress(entry.size)
        return None if found == entry else f"{entry.name} differs from the manifest (checksum)"

    wanted = list(stored.manifest.files if entries is None else entries)
    return [line for line in _in_threads(fetch, wanted) if line is not None]


def list_stored(storage: Storage) -> list[StoredCheckpoint]:
    """Return the complete checkpoints in a storage, newest first.

    Raises:
        StorageError: The storage failed.
    """
    _, named = read_latest(storage)
    folders = {name.partition("/")[0] for name in storage.sizes()} | ({named} if named else set())
    ordered = sorted((each for each in folders if _FOLDER.fullmatch(each)), key=_step, reverse=True)
    return [found for each in ordered if (found := read_stored(storage, each)) is not None]


def _prune(storage: Storage, current: str, *, keep: int, retain_interval: int | None) -> tuple[str, ...]:
    """Delete unfinished copies, other checkpoints of the current step, and those beyond the `keep` newest ones."""
    files = storage.sizes()
    folders = {each for name in files if _FOLDER.fullmatch(each := name.partition("/")[0])}
    complete = {
        each
        for each in folders
        if each == current or f"{each}/{MANIFEST}" in files or read_stored(storage, each) is not None
    }
    old = steps_to_remove(
        {_step(each) for each in complete},
        keep=keep,
        protected=_step(current),
        retain_interval=retain_interval,
    )
    going = [
        each
        for each in sorted(folders - {current})
        if each not in complete or _step(each) == _step(current) or _step(each) in old
    ]
    for folder in going:
        storage.delete(f"{folder}/{MANIFEST}")
        for name in files:
            if name.startswith(f"{folder}/"):
                storage.delete(name)
    return tuple(going)


def _step(folder: str) -> int:
    return step_of(Path(folder.partition(".")[0])) or 0


def _folder_of(manifest: Manifest, content: bytes) -> str:
    return f"iter_{manifest.step:07d}.{sha256(content).hexdigest()[:12]}"


def _content_of(checkpoint: Path) -> bytes:
    try:
        return (checkpoint / MANIFEST).read_bytes()
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


def _read(storage: Storage, name: str) -> bytes | None:
    with tempfile.TemporaryDirectory() as temporary:
        file = Path(temporary, "file")
        return file.read_bytes() if storage.get(name, file) else None


def _in_threads(work: Callable[[FileEntry], str | None], entries: list[FileEntry]) -> list[str | None]:
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(work, sorted(entries, key=lambda each: -each.size)))
