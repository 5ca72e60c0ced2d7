"""Writing the data files of one rank: tensors and bytes into `.distcp` files, hashed while they are written."""

import os
import pickle
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.storage import WriteResult

from mb_checkpoint.formats.checksums import Checksum
from mb_checkpoint.formats.manifest import ContentHash, FileEntry, hash_file
from mb_checkpoint.save.commit import METADATA_THREADS
from mb_checkpoint.save.device_sync import Synchronize, wait_for_devices
from mb_schema.files import fsync_path


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferSlot:
    """Position of a tensor in shared memory."""

    offset: int
    """Offset in bytes."""
    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Tensor or object to be written to a file."""

    index: MetadataIndex | None
    """Key in the index of the checkpoint; None if the piece is not in the index."""
    data: "torch.Tensor | bytes | BufferSlot"
    """Tensor of this rank on any device, position of a copy of it, or serialized object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """File to write."""

    name: str
    pieces: tuple[Piece, ...]
    checksum: Checksum = "xxh3_128"
    """Algorithm of the checksum that is computed while the file is written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFiles:
    """Files that a rank wrote."""

    files: tuple[FileEntry, ...] = ()
    results: tuple[WriteResult, ...] = ()
    """Position of each piece, for the index of the checkpoint."""


class HashingStream:
    """Append-only binary file that computes the checksum of its content."""

    def __init__(
        self, stream: BinaryIO, progress: Callable[[int], object], *, algorithm: Checksum = "xxh3_128"
    ) -> None:
        self._stream = stream
        self._progress = progress
        self._content = ContentHash(algorithm)
        self.failure: OSError | None = None

    def write(self, content: bytes | memoryview) -> int:
        """Append bytes; return their number."""
        view = memoryview(content).cast("B")
        try:
            self._stream.write(view)
        except OSError as error:
            self.failure = error
            raise
        self._content.update(view)
        self._progress(len(view))
        return len(view)

    def flush(self) -> None:
        """Flush buffered data to the operating system."""
        self._stream.flush()

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return self._content.size

    def entry(self, name: str) -> FileEntry:
        """Return the entry for the manifest."""
        return self._content.entry(name)


def write_files(
    folder: Path,
    files: Sequence[DataFile],
    *,
    progress: Callable[[int], object] = lambda _bytes: None,
    synchronize: Synchronize | None = None,
) -> WrittenFiles:
    """Write the files of one rank, one thread each, and force them to the disk.

    Waits for the GPUs that hold the tensors before the threads start. Tensors are copied to the host one at a time.

    Args:
        folder: Existing folder.
        files: One for each writer thread.
        progress: Called with the number of bytes of each write, from any of the threads.
        synchronize: See `wait_for_devices`.

    Raises:
        OSError: A file could not be written.
    """
    wait_for_devices((piece.data for file in files for piece in file.pieces), synchronize=synchronize)
    with ThreadPoolExecutor(max(1, len(files))) as pool:
        parts = list(pool.map(lambda file: _write_file(folder, file, progress), files))
    return WrittenFiles(
        files=tuple(entry for entry, _ in parts),
        results=tuple(result for _, results in parts for result in results),
    )


def _write_file(
    folder: Path, file: DataFile, progress: Callable[[int], object]
) -> tuple[FileEntry, list[WriteResult]]:
    results = []
    with (folder / file.name).open("wb") as raw:
        stream = HashingStream(raw, progress, algorithm=file.checksum)
        for piece in file.pieces:
            offset = stream.size
            _write_data(piece.data, stream)
            if piece.index is None:
                continue
            length = stream.size - offset
            position = _StorageInfo(file.name, offset, length)
            results.append(WriteResult(index=piece.index, size_in_bytes=length, storage_data=position))
        raw.flush()
        os.fsync(raw.fileno())
    return stream.entry(file.name), results


def _write_data(data: torch.Tensor | bytes | BufferSlot, stream: HashingStream) -> None:
    if isinstance(data, bytes):
        stream.write(data)
        return
    if isinstance(data, BufferSlot):
        raise TypeError(
            f"writing: {data} is a position in a staging buffer. Call StagingBuffer.resolve first."
        )
    try:
        torch.save(compact(data), stream)  # type: ignore[arg-type]  # it needs write and flush
    except RuntimeError:  # raised by torch if the stream fails
        if stream.failure is not None:
            raise stream.failure from None
        raise


def compact(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor on the host with a storage of its own size: saving a view would save the complete storage."""
    local = tensor.detach()
    # A subclass with fewer bits than its dtype shows, such as FP8 of a GPU library.
    if "dequantize" in type(local).__dict__:
        local = local.dequantize()
    local = local.cpu()
    alone = local.untyped_storage().nbytes() == local.numel() * local.element_size()
    return local if alone and local.is_contiguous() else local.clone(memory_format=torch.contiguous_format)


def hash_files(
    folder: Path, rank: int, *, algorithm: Checksum, progress: Callable[[int], object] = lambda _bytes: None
) -> tuple[FileEntry, ...]:
    """Hash the data files of one rank that another writer wrote, and force them to the disk.

    Args:
        folder: The staging folder.
        rank: The rank, whose files are `__RANK_*.distcp`.
        algorithm: Algorithm of the checksums.
        progress: Called with the number of bytes of each chunk.

    Raises:
        OSError: A file could not be read.
    """
    entries = []
    for path in sorted(folder.glob(f"__{rank}_*.distcp")):
        fsync_path(path)
        entries.append(hash_file(path, name=path.name, algorithm=algorithm, progress=progress))
    return tuple(entries)


RESULT = ".written_{}"
"""Name of the file with the result of a rank, to be formatted with the rank."""


def write_result(folder: Path, rank: int, written: WrittenFiles) -> None:
    """Write the result of a rank to the staging folder, for the rank that commits."""
    Path(folder, RESULT.format(rank)).write_bytes(pickle.dumps(written))


def collect_results(folder: Path, world_size: int) -> list[WrittenFiles]:
    """Return and remove the results of all ranks. The folder belongs to this run, so that unpickling them is safe.

    Raises:
        OSError: The result of a rank is missing.
    """

    # One task for each thread, and no unpickling in it: while they wait for files, the threads share one lock.
    def collect(first: int) -> list[bytes]:
        return [_read_and_remove(folder / RESULT.format(rank)) for rank in range(first, world_size, threads)]

    threads = min(METADATA_THREADS, world_size)
    with ThreadPoolExecutor(threads) as pool:
        parts = list(pool.map(collect, range(threads)))
    return [pickle.loads(parts[rank % threads][rank // threads]) for rank in range(world_size)]


def _read_and_remove(path: Path) -> bytes:
    with path.open("rb", buffering=0) as stream:
        content = stream.read()
    path.unlink()
    return content
