"""Writing the data files of one rank: tensors and bytes into `.distcp` files, hashed on the way to the disk."""

import hashlib
import io
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

from mb_checkpoint.device_sync import Synchronize, wait_for_devices
from mb_checkpoint.manifest import FileEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferSlot:
    """Where a tensor lies in memory that another process sees too."""

    offset: int
    """Bytes."""
    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One tensor or one object on its way to a file."""

    index: MetadataIndex | None
    """Where a reader finds it in the index of the checkpoint; None: it is not in the index."""
    data: "torch.Tensor | bytes | BufferSlot"
    """A tensor of this rank on any device, where a copy of one lies, or an object in its stored form."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """One file to write."""

    name: str
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFiles:
    """What a rank wrote."""

    files: tuple[FileEntry, ...] = ()
    results: tuple[WriteResult, ...] = ()
    """Place of each piece, for the index of the checkpoint."""


class HashingStream:
    """A binary file that can only be appended to, and knows the hash of all that went in."""

    def __init__(self, stream: BinaryIO, progress: Callable[[int], object]) -> None:
        self._stream = stream
        self._progress = progress
        self._digest = hashlib.sha256()
        self.size = 0
        self.failure: OSError | None = None

    def write(self, content: bytes | memoryview) -> int:
        """Append; return the number of bytes."""
        view = memoryview(content).cast("B")
        try:
            self._stream.write(view)
        except OSError as error:
            self.failure = error
            raise
        self._digest.update(view)
        self.size += len(view)
        self._progress(len(view))
        return len(view)

    def flush(self) -> None:
        """Hand what is buffered to the operating system."""
        self._stream.flush()

    def entry(self, name: str) -> FileEntry:
        """Return the entry for the manifest."""
        return FileEntry(name=name, size=self.size, sha256=self._digest.hexdigest())


def write_files(
    folder: Path,
    files: Sequence[DataFile],
    *,
    progress: Callable[[int], object] = lambda _bytes: None,
    synchronize: Synchronize | None = None,
) -> WrittenFiles:
    """Write the files of one rank, one thread each, and force them to the disk.

    Waits for the GPUs that hold the tensors before the threads start. Tensors are brought to the host one at a time.

    Args:
        folder: Exists already.
        files: One for each writer thread.
        progress: Told of each number of bytes written, from any of the threads.
        synchronize: As `wait_for_devices` takes it.

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
        stream = HashingStream(raw, progress)
        for piece in file.pieces:
            offset = stream.size
            _write_data(piece.data, stream)
            if piece.index is None:
                continue
            length = stream.size - offset
            place = _StorageInfo(file.name, offset, length)
            results.append(WriteResult(index=piece.index, size_in_bytes=length, storage_data=place))
        raw.flush()
        os.fsync(raw.fileno())
    return stream.entry(file.name), results


def _write_data(data: torch.Tensor | bytes | BufferSlot, stream: HashingStream) -> None:
    if isinstance(data, bytes):
        stream.write(data)
        return
    if isinstance(data, BufferSlot):
        raise TypeError(f"writing: {data} stands for a tensor; look it up in its memory first.")
    try:
        torch.save(compact(data), stream)  # type: ignore[arg-type]  # it needs write and flush
    except RuntimeError:  # torch's own words for a stream that failed under it
        if stream.failure is not None:
            raise stream.failure from None
        raise


def compact(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor on the host with a storage of its own size: a view would be saved with all that it views."""
    here = tensor.detach()
    if (
        "dequantize" in type(here).__dict__
    ):  # a subclass with fewer bits than it shows, such as FP8 of a GPU library
        here = here.dequantize()
    here = here.cpu()
    alone = here.untyped_storage().nbytes() == here.numel() * here.element_size()
    return here if alone and here.is_contiguous() else here.clone(memory_format=torch.contiguous_format)


def write_result(folder: Path, rank: int, written: WrittenFiles) -> None:
    """Leave what a rank wrote where the rank that commits finds it."""
    _result_file(folder, rank).write_bytes(pickle.dumps(written))


def collect_results(folder: Path, world_size: int) -> list[WrittenFiles]:
    """Return what each rank left, and remove it. The folder is that of a save of this run: its pickles are our own.

    Raises:
        OSError: A rank left nothing.
    """
    found = []
    for rank in range(world_size):
        path = _result_file(folder, rank)
        found.append(pickle.load(io.BytesIO(path.read_bytes())))
        path.unlink()
    return found


def _result_file(folder: Path, rank: int) -> Path:
    return folder / f".written_{rank}"
