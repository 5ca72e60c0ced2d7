"""Shared host memory that a training process fills and its writer process reads: one block, reused by each save."""

import mmap
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from mb_checkpoint.device_sync import Synchronize, wait_for_devices
from mb_checkpoint.writing import BufferSlot, DataFile, Piece, compact

HEADER_BYTES = 64
ALIGNMENT = 64
_COUNTER = struct.Struct("=Q")


class StagingBuffer:
    """Anonymous block of shared memory with a progress counter in its header. Linux only.

    The size of the block is that of the largest save of this rank so far.

    Args:
        descriptor: File descriptor of an existing block, inherited from another process; None creates a block.
    """

    def __init__(self, descriptor: int | None = None) -> None:
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

    def stage(
        self, files: Sequence[DataFile], *, synchronize: Synchronize | None = None
    ) -> tuple[DataFile, ...]:
        """Copy all tensors into the block and return the same files with slots in place of tensors.

        Waits for the GPUs that hold the tensors, then copies without `non_blocking`: the writer process may read the
        block as soon as this method returns. The previous contents are overwritten.

        Args:
            files: Data files of this rank.
            synchronize: See `wait_for_devices`.

        Raises:
            OSError: There is not enough memory.
        """
        wait_for_devices(_tensors(files), synchronize=synchronize)
        self.clear()
        self._ensure(sum(_aligned(_bytes(each)) for each in _tensors(files)))
        end, staged = HEADER_BYTES, []
        for file in files:
            pieces = []
            for piece in file.pieces:
                if isinstance(piece.data, torch.Tensor):
                    slot = _slot(piece.data, end)
                    self._view(slot).copy_(_plain(piece.data))
                    pieces.append(replace(piece, data=slot))
                    end = _aligned(slot.offset + _bytes(piece.data))
                else:
                    pieces.append(piece)
            staged.append(replace(file, pieces=tuple(pieces)))
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
            os.posix_fallocate(
                self.descriptor, 0, end
            )  # raises now; without it a full memory would be a SIGBUS at the first access
            self._grow(end)

    def _grow(self, size: int) -> None:
        if size > self.size:
            self._map = mmap.mmap(self.descriptor, size)


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
