"""Files of tensors and bytes: hashed on the way to the disk, staged as they were, failures with their cause."""

import hashlib
import io
import sys

import pytest
import torch
from torch.distributed.checkpoint.metadata import MetadataIndex

from mb_checkpoint.writing import (
    DataFile,
    HashingStream,
    Piece,
    Slot,
    compact,
    put_result,
    take_results,
    write_files,
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
    assert (entry.size, entry.sha256) == (len(content), hashlib.sha256(content).hexdigest())
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


def test_content_outside_of_the_index_is_hashed_too(tmp_path):
    written = write_files(tmp_path, [DataFile(name="state.pt", pieces=(Piece(index=None, data=b"abc"),))])
    assert (written.results, written.files[0].size) == ((), 3)


def test_a_slot_must_be_looked_up_first(tmp_path):
    slot = Slot(offset=0, shape=(1,), dtype=torch.float32)
    with pytest.raises(TypeError, match="stands for a tensor"):
        write_files(tmp_path, [file_of(slot)])


def test_what_a_rank_wrote_is_taken_once(tmp_path):
    written = write_files(tmp_path, [file_of(torch.ones(1))])
    put_result(tmp_path, 0, written)
    assert take_results(tmp_path, 1) == [written]
    with pytest.raises(FileNotFoundError):
        take_results(tmp_path, 1)


class Full(io.BytesIO):
    """A file on a full disk."""

    def write(self, content):
        raise OSError(28, "No space left on device")


def test_the_cause_of_a_failed_write_is_kept():
    stream = HashingStream(Full(), lambda _: None)
    with pytest.raises(OSError, match="No space left"):
        stream.write(b"x")
    assert stream.failure.errno == 28


@pytest.mark.skipif(sys.platform != "linux", reason="shared memory without a name needs Linux")
def test_staged_tensors_do_not_follow_their_originals_and_the_memory_is_used_again():
    from mb_checkpoint.arena import Arena

    arena = Arena()
    tensors = [torch.arange(7, dtype=torch.int64), torch.ones(3, 5).t(), torch.empty(0, 4), torch.tensor(2.5)]
    expected = [tensor.clone() for tensor in tensors]
    staged = arena.stage([file_of(*tensors)])
    size = arena.size
    for tensor in tensors:
        tensor.zero_()
    (file,) = arena.resolve(staged)
    assert all(torch.equal(piece.data, each) for piece, each in zip(file.pieces, expected, strict=True))
    del file
    arena.stage([file_of(torch.ones(2))])
    assert arena.size == size
    arena.close()


@pytest.mark.skipif(sys.platform != "linux", reason="needs /dev/full")
def test_a_tensor_on_a_full_disk_is_an_error_of_the_disk_and_not_one_of_torch(tmp_path):
    with pytest.raises(OSError, match="No space left on device"):
        write_files(tmp_path, [file_of(torch.ones(100_000), name="/dev/full")])
