"""Storage for copies of checkpoints beyond the disk that a run saves to: a folder, or what fsspec reaches. No torch."""

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import IO, Any, Protocol

from mb_checkpoint.errors import StorageError, cause_of
from mb_schema.file_names import path_inside
from mb_schema.files import fsync_path, replaced
from mb_schema.paths import is_url

FSSPEC = "mb_checkpoint.storage.fsspec"
CHUNK_BYTES = 8 << 20
LOCAL_SCHEME = "file://"
NEXT_STEP = "Check the address, the credentials and the network, or leave the storage out."


class Storage(Protocol):
    """Files by name, where a file that `put` has returned for is durable.

    Neither an atomic `put` nor an up-to-date `sizes` is required: see `checkpoints` for what the commit relies
    on. Names are relative, with forward slashes. All methods raise StorageError.
    """

    def put(self, source: Path, name: str) -> None:
        """Store a copy of a local file; return when it is durable. Replaces a file of the same name."""

    def read(self, name: str) -> Iterator[bytes] | None:
        """Return the content of a stored file in chunks; None if there is no such file."""

    def sizes(self, prefix: str = "") -> Mapping[str, int]:
        """Return the size in bytes of each file below a folder, whose name ends with a slash, or of all files."""

    def delete(self, name: str) -> None:
        """Delete a file, unless it is gone already."""


def open_storage(address: str, options: Mapping[str, Any] | None = None) -> Storage:
    """Return the storage at an address. Does not access it.

    Args:
        address: URL, such as `s3://bucket/run` or `gs://bucket/run`, or a folder, also as `file:///mnt/run`.
        options: Arguments of the fsspec file system of the URL, such as `endpoint_url`.

    Raises:
        StorageError: fsspec, or the package for this kind of URL, is not installed, or rejects the options; or a
            folder has options.
    """
    if is_url(address) and not address.startswith(LOCAL_SCHEME):
        # Imported here, because it imports this module.
        opened: Storage = import_module(FSSPEC).FsspecStorage(address, options or {})
        return opened
    if options:
        raise StorageError(
            f"{address}: a folder has no options, and {', '.join(options)} would have no effect. Leave them out."
        )
    return FolderStorage(Path(address.removeprefix(LOCAL_SCHEME)))


class FolderStorage:
    """Storage in a folder, such as one on a network disk. Files appear whole: each is fsynced, then renamed."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def put(self, source: Path, name: str) -> None:
        """See `Storage`."""
        with storage_errors(self._root, f"cannot store {name}"):
            target = path_inside(self._root, name)
            target.parent.mkdir(parents=True, exist_ok=True)
            with replaced(target, durable=True) as part:
                shutil.copyfile(source, part)
            fsync_path(target.parent.parent)

    def read(self, name: str) -> Iterator[bytes] | None:
        """See `Storage`."""
        with storage_errors(self._root, f"cannot read {name}"):
            path = path_inside(self._root, name)
            return chunks_of(path.open("rb"), self._root, name) if path.is_file() else None

    def sizes(self, prefix: str = "") -> Mapping[str, int]:
        """See `Storage`."""
        with storage_errors(self._root, "cannot be listed"):
            sizes = {}
            for folder, _, names in os.walk(self._root / prefix, onerror=_raise_unless_gone):
                for path in (Path(folder, name) for name in names):
                    with suppress(FileNotFoundError):  # another process has renamed or deleted it since
                        sizes[path.relative_to(self._root).as_posix()] = path.stat().st_size
            return sizes

    def delete(self, name: str) -> None:
        """See `Storage`."""
        with storage_errors(self._root, f"cannot delete {name}"):
            path = path_inside(self._root, name)
            path.unlink(missing_ok=True)
            for folder in path.relative_to(self._root).parents[:-1]:
                with suppress(OSError):  # not empty yet, or gone
                    (self._root / folder).rmdir()


def _raise_unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def chunks_of(stream: IO[bytes], address: object, name: str) -> Iterator[bytes]:
    """Yield the content of an open file of a storage, and close it. Raises StorageError."""
    with stream:
        while True:
            with storage_errors(address, f"cannot read {name}"):
                chunk = stream.read(CHUNK_BYTES)
            if not chunk:
                return
            yield chunk


@contextmanager
def storage_errors(address: object, action: str) -> Iterator[None]:
    """Convert any exception of the block, as libraries of storages have exceptions of their own, to a StorageError."""
    try:
        yield
    except StorageError:
        raise
    except Exception as error:  # raised below
        raise StorageError(f"{address}: {action} ({_reason(error)}). {NEXT_STEP}") from error


def _reason(error: BaseException) -> str:
    """Return the first error of a chain that has a text, in one line."""
    cause: BaseException | None = error
    while cause is not None and not str(cause):
        cause = cause.__cause__ or cause.__context__
    return " ".join(cause_of(cause or error).split())
