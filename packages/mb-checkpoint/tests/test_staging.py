"""Memory of background saves: allocated ahead of the first one, and registered with the GPU of the process."""

import sys

import pytest
import torch

from mb_checkpoint.save.staging_buffer import HEADER_BYTES, StagingBuffer
from mb_checkpoint.save.writing import DataFile, Piece

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="shared memory without a name needs Linux")
MIB = 2**20


class Registry:
    """Registration that keeps a list of calls."""

    def __init__(self, *, accepts=True):
        self.accepts, self.calls = accepts, []

    def register(self, address, size):
        self.calls.append(("register", size))
        self.address = address
        return self.accepts

    def unregister(self, address):
        assert address == self.address
        self.calls.append(("unregister",))


def file_of(*tensors):
    pieces = tuple(Piece(index=None, data=tensor) for tensor in tensors)
    return DataFile(name="file", pieces=pieces)


def test_a_save_after_a_reservation_allocates_nothing():
    buffer, tensor = StagingBuffer(), torch.arange(MIB)
    buffer.progress = 7
    buffer.reserve(16 * MIB)
    (staged,) = buffer.resolve(buffer.stage([file_of(tensor)]))
    assert torch.equal(staged.pieces[0].data, tensor)
    assert (buffer.size, buffer.progress) == (16 * MIB + HEADER_BYTES, 7)
    del staged
    buffer.close()


def test_a_save_may_be_larger_than_what_was_reserved():
    buffer, tensor = StagingBuffer(), torch.arange(MIB)
    buffer.reserve(MIB)
    buffer.reserve(2 * MIB)  # one reservation at a time
    (staged,) = buffer.resolve(buffer.stage([file_of(tensor)]))
    assert torch.equal(staged.pieces[0].data, tensor)
    assert buffer.size == 8 * MIB + HEADER_BYTES
    buffer.reserve(MIB)
    assert buffer.size == 8 * MIB + HEADER_BYTES
    del staged
    buffer.close()


def test_a_reservation_that_fails_is_left_to_the_save(monkeypatch):
    def full(descriptor, offset, size):
        raise OSError(28, "No space left on device")

    buffer = StagingBuffer()
    monkeypatch.setattr("os.posix_fallocate", full)
    buffer.reserve(MIB)
    buffer.wait_until_reserved()
    assert buffer.size == HEADER_BYTES
    with pytest.raises(OSError, match="No space left"):
        buffer.stage([file_of(torch.arange(9))])
    buffer.close()


@pytest.mark.parametrize("reserved", [0, 16 * MIB], ids=["at the save", "ahead"])
def test_memory_is_registered_once_and_again_if_it_grows(reserved):
    registry = Registry()
    buffer = StagingBuffer(find_registry=lambda: registry)
    if reserved:
        buffer.reserve(reserved)
    first = max(reserved, 8 * MIB) + HEADER_BYTES
    for _ in range(2):
        buffer.stage([file_of(torch.arange(MIB))])
    buffer.stage([file_of(torch.arange(4 * MIB))])
    buffer.close()
    grown = ("register", 32 * MIB + HEADER_BYTES)
    assert registry.calls == [("register", first), ("unregister",), grown, ("unregister",)]


def test_memory_that_cannot_be_registered_is_used_as_it_is():
    registry = Registry(accepts=False)
    buffer, tensor = StagingBuffer(find_registry=lambda: registry), torch.arange(9)
    (staged,) = buffer.resolve(buffer.stage([file_of(tensor)]))
    assert torch.equal(staged.pieces[0].data, tensor)
    del staged
    buffer.close()
    assert registry.calls == [("register", HEADER_BYTES + 128)]


def test_without_a_gpu_nothing_is_registered():
    from mb_checkpoint.save.pinned_memory import current_registry

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert current_registry() is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_tensors_of_a_gpu_arrive_in_registered_memory():
    torch.cuda.init()
    buffer = StagingBuffer()
    buffer.reserve(16 * MIB)
    tensors = [torch.arange(MIB, device="cuda") + number for number in range(2)]
    (staged,) = buffer.resolve(buffer.stage([file_of(*tensors)]))
    assert buffer._registered is not None
    assert all(
        torch.equal(piece.data, tensor.cpu()) for piece, tensor in zip(staged.pieces, tensors, strict=True)
    )
    del staged
    buffer.close()
