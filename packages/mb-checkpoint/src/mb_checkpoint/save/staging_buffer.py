"""Shared host memory that a training process fills and its writer process reads: one block, reused by each save."""

import mmap
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from threading import Thread

import torch

from mb_checkpoint.save.device_sync import Synchronize, wait_for_copies, wait_for_devices
from mb_checkpoint.save.pinned_memory import MemoryRegistry, current_registry
from mb_checkpoint.save.writing import BufferSlot, DataFile, Piece, compact

HEADER_BYTES = 64
ALIGNMENT = 64
_COUNTER = struct.Struct("=Q")


class StagingBuffer:
    """Anonymous block of shared memory with a progress counter in its header. Linux only.

    The size of the block is that of the largest save of this rank so far, or what was reserved. The first access to a
    page costs more than a copy into it, and so does the registration with CUDA; `reserve` does both ahead of a save.

    Args:
        descriptor: File descriptor of an existing block, inherited from another process; None creates a block.
        find_registry: Returns the registration of memory with the GPU of this process; None if there is none.
    """

    def __init__(
        self,
        descriptor: int | None = None,
        *,
        find_registry: Callable[[], MemoryRegistry | None] = current_registry,
    ) -> None:
        self._find_registry = find_registry
        self._registered: tuple[MemoryRegistry, int] | None = None
        self._reserving: Thread | None = None
        self._reserved: tuple[mmap.mmap, tuple[MemoryRegistry, int] | None] | None = None
        self.descriptor = os.memfd_create("mb_checkpoint") if descriptor is None else descriptor
        if descriptor is None:
            os.ftruncate(self.descriptor, HEADER_BYTES)
        self._map = mmap.mmap(self.descriptor, 0)
        self._end = HEADER_BYTES

    @property
    def size(self) -> int:
        """Size in bytes, including the header."""
        return len(self._map)

    @property
    def progress(self) -> int:
        """Number of bytes that the writer process has written since it was started."""
        return int(_COUNTER.unpack_from(self._map)[0])

    @progress.setter
    def progress(self, value: int) -> None:
        _COUNTER.pack_into(self._map, 0, value)

    @property
    def ready(self) -> bool:
        """Whether the writer process has started and accepts jobs."""
        return bool(self._map[_COUNTER.size])

    @ready.setter
    def ready(self, value: bool) -> None:
        self._map[_COUNTER.size] = int(value)

    def reserve(self, size: int) -> None:
        """Allocate memory for a number of bytes in the background, and make the first access to each page.

        The next save waits for it. Does nothing if the block is large enough, or another reservation is in progress.
        Without enough memory the block keeps its size, and the next save raises the error.
        """
        if self._reserving is not None or size + HEADER_BYTES <= self.size:
            return
        self._reserving = Thread(
            target=self._allocate,
            args=(size + HEADER_BYTES, self._find_registry()),  # the GPU is selected in this thread
            name="mb_checkpoint.reserve",
            daemon=True,
        )
        self._reserving.start()

    def wait_until_reserved(self) -> None:
        """Wait for a reservation in progress."""
        if self._reserving is not None:
            self._reserving.join()
            self._reserving = None
        if self._reserved is not None:
            block, registered = self._reserved
            self._use(block)
            self._registered, self._reserved = registered, None

    def stage(
        self, files: Sequence[DataFile], *, synchronize: Synchronize | None = None
    ) -> tuple[DataFile, ...]:
        """Copy all tensors into the block and return the same files with slots in place of tensors.

        Waits for all streams of the GPUs that hold the tensors, issues all copies without waiting, and waits once for
        each of these GPUs: the writer process may read the block as soon as this method returns. The previous contents
        are overwritten.

        Args:
            files: Data files of this rank.
            synchronize: See `wait_for_devices`.

        Raises:
            OSError: There is not enough memory.
        """
        wait_for_devices(_tensors(files), synchronize=synchronize)
        self.clear()
        self._ensure(sum(_aligned(_bytes(tensor)) for tensor in _tensors(files)))
        self._register()
        end, staged = HEADER_BYTES, []
        for file in files:
            pieces = []
            for piece in file.pieces:
                if isinstance(piece.data, torch.Tensor):
                    slot = _slot(piece.data, end)
                    self._view(slot).copy_(_plain(piece.data), non_blocking=True)
                    pieces.append(replace(piece, data=slot))
                    end = _aligned(slot.offset + _bytes(piece.data))
                else:
                    pieces.append(piece)
            staged.append(replace(file, pieces=tuple(pieces)))
        wait_for_copies(_tensors(files), synchronize=synchronize)
        self._end = end
        return tuple(staged)

    def clear(self) -> None:
        """Mark the block as empty."""
        self._end = HEADER_BYTES

    def append_bytes(self, content: bytes) -> tuple[int, int]:
        """Append bytes to the contents of the block; return (offset, length) for `read_bytes_at` in another process.

        Raises:
            OSError: There is not enough memory.
        """
        self._ensure(len(content))
        self._map[self._end : self._end + len(content)] = content
        return self._end, len(content)

    def read_bytes_at(self, position: tuple[int, int]) -> bytes:
        """Return the bytes at (offset, length)."""
        self._grow(os.fstat(self.descriptor).st_size)
        return self._map[position[0] : position[0] + position[1]]

    def resolve(self, files: Sequence[DataFile]) -> tuple[DataFile, ...]:
        """Return the same files with tensors, which are views of the block, in place of slots; nothing is copied."""
        self._grow(os.fstat(self.descriptor).st_size)
        return tuple(
            replace(file, pieces=tuple(self._resolved(piece) for piece in file.pieces)) for file in files
        )

    def close(self) -> None:
        """Release the memory."""
        self.wait_until_reserved()
        self._unregister()
        self._map.close()
        os.close(self.descriptor)

    def _resolved(self, piece: Piece) -> Piece:
        return replace(piece, data=self._view(piece.data)) if isinstance(piece.data, BufferSlot) else piece

    def _view(self, slot: BufferSlot) -> torch.Tensor:
        count = 1
        for length in slot.shape:
            count *= length
        if count == 0:
            return torch.empty(slot.shape, dtype=slot.dtype)
        flat = torch.frombuffer(self._map, dtype=slot.dtype, count=count, offset=slot.offset)
        return flat.view(slot.shape)

    def _ensure(self, count: int) -> None:
        end = self._end + count
        if end > self.size:
            self.wait_until_reserved()
        if end > self.size:
            # Raises now; without it a full memory would be a SIGBUS at the first access.
            os.posix_fallocate(self.descriptor, 0, end)
            self._grow(end)

    def _grow(self, size: int) -> None:
        if size > self.size:
            self._use(mmap.mmap(self.descriptor, size))

    def _use(self, block: mmap.mmap) -> None:
        """Replace the mapping; the old one lives as long as tensors on it."""
        self._unregister()
        self._map = block

    def _allocate(self, size: int, registry: MemoryRegistry | None) -> None:
        """Allocate the block, map it, write to each page but the first, which holds the header, and register it."""
        try:
            os.posix_fallocate(self.descriptor, 0, size)
            block = mmap.mmap(self.descriptor, size)
        except OSError:
            return
        pages = torch.frombuffer(block, dtype=torch.uint8)[mmap.PAGESIZE :: mmap.PAGESIZE]
        pages.fill_(0)  # releases the interpreter lock, unlike mmap.MAP_POPULATE
        self._reserved = block, _registered(block, registry)

    def _register(self) -> None:
        """Register a block that grew without a reservation."""
        if self._registered is None:
            self._registered = _registered(self._map, self._find_registry())

    def _unregister(self) -> None:
        if self._registered is not None:
            registry, address = self._registered
            registry.unregister(address)
            self._registered = None


def _registered(block: mmap.mmap, registry: MemoryRegistry | None) -> tuple[MemoryRegistry, int] | None:
    """Register a block; return what its registration is undone with, or None if it is not registered."""
    if registry is None:
        return None
    address = torch.frombuffer(block, dtype=torch.uint8).data_ptr()
    return (registry, address) if registry.register(address, len(block)) else None


def _tensors(files: Sequence[DataFile]) -> Iterator[torch.Tensor]:
    for file in files:
        for piece in file.pieces:
            if isinstance(piece.data, torch.Tensor):
                yield piece.data


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    return compact(tensor) if "dequantize" in type(tensor).__dict__ else tensor.detach()


def _slot(tensor: torch.Tensor, offset: int) -> BufferSlot:
    return BufferSlot(offset=offset, shape=tuple(tensor.shape), dtype=tensor.dtype)


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT
