"""Data files: hashed while they are written, staged before training changes the tensors, failures with their cause."""

import io
import sys

import pytest
import torch
import xxhash
from torch.distributed.checkpoint.metadata import MetadataIndex

from mb_checkpoint.save.device_sync import wait_for_devices
from mb_checkpoint.save.writing import (
    BufferSlot,
    DataFile,
    HashingStream,
    Piece,
    collect_results,
    compact,
    write_files,
    write_result,
)


def file_of(*tensors, name="__0_0.distcp"):
    pieces = [Piece(index=MetadataIndex(f"t{number}"), data=tensor) for number, tensor in enumerate(tensors)]
    return DataFile(name=name, pieces=tuple(pieces))


def test_hash_size_and_places_are_those_of_the_file(tmp_path):
    one, other = torch.arange(5.0), torch.ones(2, 3, dtype=torch.bfloat16)
    counted = []
    written = write_files(tmp_path, [file_of(one, other)], progress=counted.append)
    content = (tmp_path / "__0_0.distcp").read_bytes()
    (entry,) = written.files
    assert (entry.size, entry.checksum) == (len(content), f"xxh3_128:{xxhash.xxh3_128_hexdigest(content)}")
    assert sum(counted) == len(content)
    for result, tensor in zip(written.results, (one, other), strict=True):
        place = result.storage_data
        piece = io.BytesIO(content[place.offset : place.offset + place.length])
        assert torch.equal(torch.load(piece, weights_only=True), tensor)


def test_a_view_is_stored_without_what_it_views():
    base = torch.arange(1000.0)
    for view in (base[10:12], base.view(10, 100)[:, 3], base.view(20, 50).t()):
        alone = compact(view)
        assert torch.equal(alone, view)
        assert alone.untyped_storage().nbytes() == view.numel() * 4
    assert compact(base).data_ptr() == base.data_ptr()


def test_content_outside_of_the_index_is_also_hashed(tmp_path):
    written = write_files(tmp_path, [DataFile(name="state.pt", pieces=(Piece(index=None, data=b"abc"),))])
    assert (written.results, written.files[0].size) == ((), 3)


def test_a_slot_must_be_resolved_first(tmp_path):
    slot = BufferSlot(offset=0, shape=(1,), dtype=torch.float32)
    with pytest.raises(TypeError, match="is a position in a staging buffer"):
        write_files(tmp_path, [file_of(slot)])


def test_the_result_of_a_rank_is_collected_once(tmp_path):
    written = write_files(tmp_path, [file_of(torch.ones(1))])
    write_result(tmp_path, 0, written)
    assert collect_results(tmp_path, 1) == [written]
    with pytest.raises(FileNotFoundError):
        collect_results(tmp_path, 1)


class Full(io.BytesIO):
    """File on a full disk."""

    def write(self, content):
        raise OSError(28, "No space left on device")


def test_the_cause_of_a_failed_write_is_kept():
    stream = HashingStream(Full(), lambda _: None)
    with pytest.raises(OSError, match="No space left"):
        stream.write(b"x")
    assert stream.failure.errno == 28


@pytest.mark.skipif(sys.platform != "linux", reason="shared memory without a name needs Linux")
def test_staged_tensors_do_not_follow_their_originals_and_the_memory_is_used_again():
    from mb_checkpoint.save.staging_buffer import StagingBuffer

    buffer = StagingBuffer()
    tensors = [torch.arange(7, dtype=torch.int64), torch.ones(3, 5).t(), torch.empty(0, 4), torch.tensor(2.5)]
    expected = [tensor.clone() for tensor in tensors]
    staged = buffer.stage([file_of(*tensors)])
    size = buffer.size
    for tensor in tensors:
        tensor.zero_()
    (file,) = buffer.resolve(staged)
    assert all(torch.equal(piece.data, each) for piece, each in zip(file.pieces, expected, strict=True))
    del file
    buffer.stage([file_of(torch.ones(2))])
    assert buffer.size == size
    buffer.close()


@pytest.mark.skipif(sys.platform != "linux", reason="needs /dev/full")
def test_a_tensor_on_a_full_disk_is_an_error_of_the_disk_and_not_one_of_torch(tmp_path):
    with pytest.raises(OSError, match="No space left on device"):
        write_files(tmp_path, [file_of(torch.ones(100_000), name="/dev/full")])


class Stream:
    """Simulated stream of a GPU: work that is queued until the device is synchronized."""

    def __init__(self):
        self.queued, self.waited_for = [], []

    def synchronize(self, device):
        self.waited_for.append(str(device))
        for work in self.queued:
            work()
        self.queued.clear()


class OnGpu(torch.Tensor):
    """Tensor that reports a GPU as its device, with the bytes of a tensor on the host."""

    @staticmethod
    def __new__(cls, bytes_, device):
        made = torch.Tensor._make_wrapper_subclass(cls, bytes_.shape, dtype=bytes_.dtype, device=device)
        made.bytes = bytes_
        return made

    @classmethod
    def __torch_dispatch__(cls, function, _types, arguments=(), options=None):
        if function is torch.ops.aten.detach.default:
            return cls(arguments[0].bytes, arguments[0].device)
        plain = [each.bytes if isinstance(each, cls) else each for each in arguments]
        return function(*plain, **{**(options or {}), **({"device": "cpu"} if options else {})})


def updated_later(stream):
    """Return two parameters on GPUs whose update is queued on the stream, and their values after it."""
    values = [torch.zeros(3), torch.zeros(2)]
    stream.queued += [lambda value=value: value.fill_(7.0) for value in values]
    return [OnGpu(value, f"cuda:{index}") for index, value in enumerate(values)], [
        torch.full_like(value, 7.0) for value in values
    ]


def test_threads_that_write_read_tensors_after_the_queued_work_of_their_gpus(tmp_path):
    stream = Stream()
    tensors, expected = updated_later(stream)
    files = [file_of(tensors[0], name="a"), file_of(tensors[1], name="b")]
    written = write_files(tmp_path, files, synchronize=stream.synchronize)
    stored = [torch.load(tmp_path / entry.name, weights_only=True) for entry in written.files]
    assert all(torch.equal(*each) for each in zip(stored, expected, strict=True))
    assert stream.waited_for == ["cuda:0", "cuda:1"]


@pytest.mark.skipif(sys.platform != "linux", reason="shared memory without a name needs Linux")
def test_the_writer_process_gets_tensors_after_the_queued_work_of_their_gpus():
    from mb_checkpoint.save.staging_buffer import StagingBuffer

    stream, buffer = Stream(), StagingBuffer()
    tensors, expected = updated_later(stream)
    (file,) = buffer.resolve(buffer.stage([file_of(*tensors)], synchronize=stream.synchronize))
    assert all(torch.equal(piece.data, each) for piece, each in zip(file.pieces, expected, strict=True))
    assert stream.waited_for == ["cuda:0", "cuda:1"] * 2  # before the copies are issued, and for them
    del file
    buffer.close()


def test_tensors_on_the_host_need_no_synchronization(tmp_path):
    stream = Stream()
    write_files(tmp_path, [file_of(torch.ones(1))], synchronize=stream.synchronize)
    wait_for_devices([b"no tensor", torch.ones(1)], synchronize=stream.synchronize)
    assert stream.waited_for == []
