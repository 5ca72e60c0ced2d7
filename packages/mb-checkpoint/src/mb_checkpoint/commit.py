"""Writing so that a reader sees a whole checkpoint or none: staging folder, manifest, fsync, rename, trackers last."""

import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from mb_checkpoint.errors import CheckpointFolderError
from mb_checkpoint.layout import (
    MANIFEST,
    STATE_TRACKER,
    STEP_TRACKER,
    TRAIN_STATE,
    iteration_directory,
    replaced_directory,
    staging_directory,
)
from mb_checkpoint.manifest import FileEntry, Manifest, encode_manifest, hash_file


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file with new content: at any moment a reader sees the old or the new, never a part.

    Temporary file beside it, flush, fsync, rename, fsync of the folder.

    Raises:
        OSError: Nothing could be written; the old file is as before and no temporary file is left.
    """
    with staged(path, content) as put:
        put()
    fsync_path(path.parent)


@contextmanager
def staged(path: Path, content: bytes) -> Iterator[Callable[[], object]]:
    """Write a temporary file beside `path`, on the disk already, and yield what renames it into place."""
    name = path.with_name(f".{path.name}.{secrets.token_hex(8)}")  # with the permissions that other files get
    try:
        with name.open("xb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        yield lambda: name.replace(path)
    finally:
        name.unlink(missing_ok=True)


def fsync_path(path: Path) -> None:
    """Force a file's content, or a folder's list of names, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_and_write_manifest(
    staging: Path,
    facts: Manifest,
    *,
    written: Sequence[FileEntry] = (),
    progress: Callable[[int], object] = lambda _bytes: None,
) -> Manifest:
    """Force everything in a complete staging folder to the disk and write its manifest; return it.

    Args:
        staging: The folder; all its files are there.
        facts: The manifest but for the files.
        written: Files that are hashed and on the disk already; the others are read and hashed here.
        progress: Told each number of bytes that are read.
    """
    known = {entry.name: entry for entry in written}
    folders = [staging]
    for path in sorted(staging.rglob("*")):
        name = path.relative_to(staging).as_posix()
        if path.is_dir():
            folders.append(path)
        elif name not in known:
            fsync_path(path)
            known[name] = hash_file(path, name=name, progress=progress)
    manifest = replace(facts, files=tuple(known[name] for name in sorted(known)))
    with (staging / MANIFEST).open("wb") as stream:
        stream.write(encode_manifest(manifest))
        stream.flush()
        os.fsync(stream.fileno())
    for folder in reversed(folders):
        fsync_path(folder)
    return manifest


def check_writable(path: Path | str) -> None:
    """Make sure that checkpoints can be written below a path, which need not exist yet; nothing is left there.

    Raises:
        CheckpointFolderError: The path, or its nearest existing parent, is no folder or takes no file.
    """
    wanted = Path(path)
    try:
        existing = next(
            parent for parent in (wanted.absolute(), *wanted.absolute().parents) if parent.exists()
        )
    except OSError as error:
        raise CheckpointFolderError(
            f"checkpoint.save: cannot write checkpoints to {wanted}: {error.strerror}. "
            "Set checkpoint.save to a folder that can be written."
        ) from error
    if not existing.is_dir():
        raise CheckpointFolderError(
            f"checkpoint.save: cannot write checkpoints to {wanted}: {existing} is not a folder. "
            "Set checkpoint.save to a folder that can be written."
        )
    try:
        with tempfile.TemporaryFile(dir=existing) as stream:
            stream.write(b"\0")
            stream.flush()
    except OSError as error:
        raise CheckpointFolderError(
            f"checkpoint.save: cannot write checkpoints to {wanted}: {existing} takes no file "
            f"({error.strerror}). Set checkpoint.save to a folder that can be written."
        ) from error


def open_staging(root: Path, step: int, *, attempt: str | None = None) -> Path:
    """Make the empty staging folder of a step and remove what interrupted saves left behind.

    One writer per root: whoever calls this owns every staging folder below it. `attempt` names this try; None makes a
    name up.
    """
    root.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(root)
    staging = staging_directory(root, step, attempt or secrets.token_hex(4))
    staging.mkdir()
    return staging


def _remove_leftovers(root: Path) -> None:
    """Remove unfinished saves, half-deleted folders, and replaced folders whose successor is in place."""
    for left in (*root.glob(".saving_iter_*"), *root.glob(".removing_iter_*")):
        remove_folder(left)
    for left in root.glob(".replaced_iter_*"):
        if left.with_name(left.name.removeprefix(".replaced_")).exists():
            remove_folder(left)


def remove_folder(path: Path) -> None:
    """Remove a folder of which another process may remove parts, or all, at the same time.

    Raises:
        OSError: Something in it cannot be removed; what is gone already is no error.
    """

    def unless_gone(_call: object, _name: str, error: BaseException) -> None:
        if not isinstance(error, FileNotFoundError):
            raise error

    shutil.rmtree(path, onexc=unless_gone)


def commit(root: Path, step: int, staging: Path) -> Path:
    """Turn a sealed staging folder into the checkpoint that the trackers name; return its folder.

    The rename makes it visible, the trackers make it the one to resume from. A kill before the trackers
    leaves the previous checkpoint in force; a kill after them leaves this one. An older folder of the same
    step stays readable until the new one is in place.
    """
    final, replaced = iteration_directory(root, step), replaced_directory(root, step)
    if final.exists():
        shutil.rmtree(replaced, ignore_errors=True)
        final.rename(replaced)
    staging.rename(final)
    fsync_path(root)
    write_trackers(root, step)
    shutil.rmtree(replaced, ignore_errors=True)
    return final


def write_trackers(root: Path, step: int) -> None:
    """Point both trackers at the folder of a step, each atomically; neither moves unless there is room for both."""
    state = (iteration_directory(root, step) / TRAIN_STATE).read_bytes()
    with (
        staged(root / STATE_TRACKER, state) as put_state,
        staged(root / STEP_TRACKER, b"%d" % step) as put_step,
    ):
        put_state()
        put_step()
    fsync_path(root)


def discard(staging: Path) -> None:
    """Remove the staging folder of a failed save as far as that is possible."""
    shutil.rmtree(staging, ignore_errors=True)
