"""Atomic commit of a checkpoint: staging folder, manifest, fsync, rename, and trackers last.

A reader sees either the complete checkpoint or none.
"""

import logging
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from mb_checkpoint.errors import CheckpointFolderError, cause_of
from mb_checkpoint.formats.checksums import Checksum
from mb_checkpoint.formats.layout import (
    MANIFEST,
    STATE_TRACKER,
    STEP_TRACKER,
    TRAIN_STATE,
    iteration_directory,
    leftovers,
    replaced_directory,
    staging_directory,
)
from mb_checkpoint.formats.manifest import FileEntry, Manifest, encode_manifest, hash_file
from mb_schema.files import fsync_path, replaced

logger = logging.getLogger(__name__)

METADATA_THREADS = 64
"""Number of small files that are read or deleted concurrently: on a shared file system each takes its round trips."""


def write_atomically(path: Path, content: bytes) -> None:
    """Replace the content of a file atomically and durably: a reader sees either the old or the new content.

    Raises:
        OSError: Writing failed; the old file is unchanged and no temporary file remains.
    """
    with replaced(path, durable=True) as part:
        part.write_bytes(content)


def fsync_and_write_manifest(
    staging: Path,
    facts: Manifest,
    *,
    written: Sequence[FileEntry] = (),
    checksum: Checksum = "xxh3_128",
    progress: Callable[[int], object] = lambda _bytes: None,
) -> Manifest:
    """Force all files of a complete staging folder to the disk, write its manifest and return it.

    Args:
        staging: The staging folder with all its files.
        facts: The manifest without the list of files.
        written: Files that are on the disk, with their checksums; the other files are read here.
        checksum: Algorithm of the checksums of the other files.
        progress: Called with the number of bytes of each chunk that is read.
    """
    entries = {entry.name: entry for entry in written}
    folders = []
    for walked, _, names in os.walk(staging):  # without a stat of each file
        folders.append(Path(walked))
        for path in (folders[-1] / each for each in sorted(names)):
            relative = path.relative_to(staging).as_posix()
            if relative not in entries:
                fsync_path(path)
                entries[relative] = hash_file(path, name=relative, algorithm=checksum, progress=progress)
    manifest = replace(facts, files=tuple(entries[name] for name in sorted(entries)))
    with (staging / MANIFEST).open("wb") as stream:
        stream.write(encode_manifest(manifest))
        stream.flush()
        os.fsync(stream.fileno())
    for folder in reversed(folders):
        fsync_path(folder)
    return manifest


def check_writable(path: Path | str) -> None:
    """Check that checkpoints can be written to a path, which need not exist yet. Leaves no file behind.

    Raises:
        CheckpointFolderError: The path, or its nearest existing parent, is not a folder or is not writable.
    """
    reason = unwritable_reason(path)
    if reason is not None:
        raise CheckpointFolderError(
            f"checkpoint.save: cannot write checkpoints to {path}: {reason}. "
            "Set checkpoint.save to a folder that can be written."
        )


def unwritable_reason(path: Path | str) -> str | None:
    """Return why no file can be written to a folder, which need not exist yet; None if one can. Leaves no file."""
    target = Path(path).absolute()
    try:
        existing = next(folder for folder in (target, *target.parents) if folder.exists())
    except OSError as error:
        return error.strerror or str(error)
    if not existing.is_dir():
        return f"{existing} is not a folder"
    try:
        with tempfile.TemporaryFile(dir=existing) as stream:
            stream.write(b"\0")
            stream.flush()
    except OSError as error:
        return f"{existing} takes no file ({error.strerror})"
    return None


def open_staging(root: Path, step: int) -> Path:
    """Create the empty staging folder of a step and remove the remains of interrupted saves.

    A root has a single writer: the caller owns every staging folder in it. What cannot be removed is logged, and the
    next save tries again: a surviving process may write to it, or have it open on NFS.
    """
    root.mkdir(parents=True, exist_ok=True)
    for path in leftovers(root):
        try:
            remove_leftover(path)
        except OSError as error:
            logger.warning(f"could not delete {path}, which an interrupted save has left: {cause_of(error)}")
    staging = staging_directory(root, step, attempt=secrets.token_hex(4))
    staging.mkdir()
    return staging


def remove_leftover(path: Path, *, progress: Callable[[int], object] = lambda _files: None) -> None:
    """Remove one of `layout.leftovers`; arguments and errors as `remove_folder`."""
    if path.is_dir() and not path.is_symlink():
        remove_folder(path, progress=progress)
    else:
        path.unlink(missing_ok=True)


def remove_folder(path: Path, *, progress: Callable[[int], object] = lambda _files: None) -> None:
    """Remove a folder that another process may be removing at the same time.

    Args:
        path: The folder.
        progress: Called after each of its files, in any thread.

    Raises:
        OSError: An entry cannot be removed. An entry that is already gone is not an error.
    """

    def unless_gone(_call: object, _name: str, error: Any) -> None:
        error = error[1] if isinstance(error, tuple) else error  # Python 3.11 and older pass sys.exc_info()
        if not isinstance(error, FileNotFoundError):
            raise error

    def unlink(file: Path) -> None:
        file.unlink(missing_ok=True)
        progress(1)

    with ThreadPoolExecutor(METADATA_THREADS) as pool:
        list(pool.map(unlink, path.glob("*.distcp")))
    if sys.version_info >= (3, 12):
        shutil.rmtree(path, onexc=unless_gone)
    else:
        shutil.rmtree(path, onerror=unless_gone)


def commit(root: Path, step: int, staging: Path) -> Path:
    """Rename a staging folder with a manifest to its final name, update the trackers and return the new folder.

    The rename makes the checkpoint visible; the trackers make it the one to resume from. If the process dies before the
    trackers are written, the previous checkpoint remains current; afterwards this one is. An older folder of the same
    step remains readable until the new one is in place.
    """
    final, replaced = iteration_directory(root, step), replaced_directory(root, step)
    if final.exists():
        # One may be left of a process that died here; a folder cannot be renamed to one that has files.
        shutil.rmtree(replaced, ignore_errors=True)
        final.rename(replaced)
    staging.rename(final)
    fsync_path(root)  # the rename must be durable before a tracker names the folder
    write_trackers(root, step)
    shutil.rmtree(replaced, ignore_errors=True)
    return final


def write_trackers(root: Path, step: int) -> None:
    """Point both trackers to the folder of a step, each atomically; both are staged before the first one is renamed."""
    # Both temporary files are on the disk before the first rename: a full disk leaves both trackers unchanged.
    state = (iteration_directory(root, step) / TRAIN_STATE).read_bytes()
    with replaced(root / STEP_TRACKER) as step_file, replaced(root / STATE_TRACKER) as state_file:
        for part, content in ((state_file, state), (step_file, b"%d" % step)):
            part.write_bytes(content)
            fsync_path(part)
    fsync_path(root)


def discard(staging: Path) -> None:
    """Remove the staging folder of a failed save, as far as possible."""
    shutil.rmtree(staging, ignore_errors=True)
